"""An issuer of tokens: what the broker knows of it, and tokens that it has signed."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from malamute.config import TokenIssuer

NAME = "https://login.example.org"


class SigningIssuer:
    """An issuer whose public key is in a file of a directory."""

    def __init__(self, directory: Path) -> None:
        self._key = ed25519.Ed25519PrivateKey.generate()
        file = directory / "issuer.pem"
        file.touch(0o644)
        file.write_bytes(self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        self.known = TokenIssuer(NAME, "malamute", str(file), ("EdDSA",))

    def token(self, user: str, seconds: float = 3600, **more: str) -> str:
        """A token of a user that is good for so long."""
        claims = {"iss": NAME, "aud": "malamute", "sub": user, "exp": time.time() + seconds, **more}
        return jwt.encode(claims, self._key, algorithm="EdDSA")
