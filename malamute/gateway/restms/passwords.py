"""Passwords of feeds, which are kept as salted hashes."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from hmac import compare_digest


async def hashed(password: str) -> str:
    """Return the salted hash of a password; empty without one."""
    return await asyncio.to_thread(_hashed, password, secrets.token_hex(16)) if password else ""


async def is_password(kept: str, given: str) -> bool:
    """Return whether a password matches the hash `kept`."""
    found = await asyncio.to_thread(_hashed, given, kept.partition("$")[0])
    return compare_digest(found.encode(), kept.encode())


def _hashed(password: str, salt: str) -> str:
    key = hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1)
    return f"{salt}${key.hex()}"
