"""Bearer tokens: the user of a client by the signature of an issuer (JWT, RFC 7519).

Pure: keys come as text, and the time is an argument. PyJWT checks the signature, and is loaded with the first
issuer. This module decides about:

    algorithms      the configured ones, and none with a shared secret: a public key is never taken for a
                    secret
    key             by the id that the token names, of the kind that its algorithm needs
    time            of the caller

Each refusal has one of `REASONS`, which never hold a part of the token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.access.policy import Claims
from malamute.access.rule import AccessRule
from malamute.errors import ConfigError, InvalidRule, NotInstalled
from malamute.protocol.names import RESERVED_PREFIX, is_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

ALGORITHMS: Mapping[str, str] = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "secp256r1",
    "ES384": "secp384r1",
    "ES512": "secp521r1",
    "EdDSA": "Ed25519",
}
"""The algorithms that an issuer may use, each with the kind of key that it needs."""

RSA_BITS_MIN = 2_048

SECONDS_MAX = 1 << 40
"""The latest time that a token may name, in seconds since the epoch."""

_TIMES_AND_PLACES = frozenset(("exp", "nbf", "iat", "jti", "aud", "iss"))
"""Claims about the token itself, which no rule names."""

MALFORMED = "malformed"
UNKNOWN_ISSUER = "unknown issuer"
WRONG_ALGORITHM = "the algorithm is not allowed"
UNKNOWN_KEY = "unknown key id"
WRONG_SIGNATURE = "wrong signature"
WRONG_AUDIENCE = "wrong audience"
EXPIRED = "expired"
TOO_EARLY = "not yet valid"
NO_EXPIRY = "no expiry"
NO_USER = "no valid user"
NO_SCOPE = "no valid scope"

REASONS = (
    MALFORMED,
    UNKNOWN_ISSUER,
    WRONG_ALGORITHM,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    WRONG_AUDIENCE,
    EXPIRED,
    TOO_EARLY,
    NO_EXPIRY,
    NO_USER,
    NO_SCOPE,
)
"""Why a token is refused."""


class TokenRefused(Exception):
    """Raised for a token that proves nothing. `reason` is one of `REASONS`; clients get error 401."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"token refused: {reason}")
        self.reason = reason


class Bearer(NamedTuple):
    """The user of a token, and its expiry in seconds since the epoch.

    `key` identifies the signing key and its issuer. `scope` are rules that narrow the rights of the user;
    None if the issuer has none.
    """

    user: str
    claims: Claims
    expires_at: float
    key: str
    scope: tuple[AccessRule, ...] | None = None


class TokenKey(NamedTuple):
    """A public key of an issuer. `kid` is its id, empty if it has none; `kind` is one of `ALGORITHMS`."""

    kid: str
    kind: str
    key: PublicKeyTypes
    name: str
    """Return an identity that no other key of any issuer has."""


class Issuer:
    """An issuer of accepted tokens, with its keys."""

    def __init__(
        self,
        name: str,
        audience: str,
        algorithms: Sequence[str],
        keys: str,
        *,
        user_claim: str = "sub",
        scope_claim: str = "",
        leeway_seconds: float = 0.0,
    ) -> None:
        """Read `keys`, PEM or a JWKS. The claims `iss` and `aud` have to equal `name` and `audience`.

        Raises:
            ConfigError: the keys cannot be used, or an algorithm has none.
            NotInstalled: PyJWT or its cryptography is missing.
        """
        self.name = name
        self._audience = audience
        self._algorithms = frozenset(algorithms)
        self._user_claim, self._scope_claim = user_claim, scope_claim
        self._leeway_seconds = leeway_seconds
        self.keys = tuple(_read_keys(name, keys))
        kinds = {key.kind for key in self.keys}
        if without := [algorithm for algorithm in algorithms if ALGORITHMS[algorithm] not in kinds]:
            raise ConfigError(f"no key for {without[0]}: expected one of kind {ALGORITHMS[without[0]]}")

    def verify(self, token: str, header: Mapping[str, Any], now: float) -> Bearer:
        """Return the user of a token with this header. Raises `TokenRefused`."""
        import jwt

        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise TokenRefused(WRONG_ALGORITHM)
        key = self._key(ALGORITHMS[algorithm], kid)
        try:
            claims = jwt.decode(
                token,
                key.key,  # type: ignore[arg-type]  # of a kind that is in `ALGORITHMS`
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self.name,
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except jwt.InvalidSignatureError:
            raise TokenRefused(WRONG_SIGNATURE) from None
        except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
            raise TokenRefused(WRONG_AUDIENCE) from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused(MALFORMED) from None
        expires_at = self._check_times(claims, now)
        user = claims.get(self._user_claim)
        if not isinstance(user, str) or not _is_text(user) or not is_name(user):
            raise TokenRefused(NO_USER)
        if user.startswith(RESERVED_PREFIX):
            raise TokenRefused(NO_USER)
        scope = _scope_of(claims.get(self._scope_claim)) if self._scope_claim else None
        return Bearer(user, _claims_of(claims), expires_at, key.name, scope)

    def _key(self, kind: str, kid: object) -> TokenKey:
        fitting = [key for key in self.keys if key.kind == kind and key.kid in ("", kid)]
        if kid is None and not fitting:
            fitting = [key for key in self.keys if key.kind == kind]
        if len(fitting) != 1:
            raise TokenRefused(UNKNOWN_KEY)
        return fitting[0]

    def _check_times(self, claims: Mapping[str, Any], now: float) -> float:
        if "exp" not in claims:
            raise TokenRefused(NO_EXPIRY)
        expires_at = _seconds(claims["exp"]) + self._leeway_seconds
        if now >= expires_at:
            raise TokenRefused(EXPIRED)
        if "nbf" in claims and now < _seconds(claims["nbf"]) - self._leeway_seconds:
            raise TokenRefused(TOO_EARLY)
        return expires_at


class Issuers:
    """All issuers by their names."""

    def __init__(self, issuers: Iterable[Issuer] = ()) -> None:
        self.by_name = {issuer.name: issuer for issuer in issuers}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def keys(self) -> frozenset[str]:
        """Return the identities of all keys."""
        return frozenset(key.name for issuer in self.by_name.values() for key in issuer.keys)

    def verify(self, token: str, now: float) -> Bearer:
        """Return the user of a token; `now` is in seconds since the epoch.

        Raises:
            TokenRefused: it proves nothing; says why.
        """
        import jwt

        try:
            unproven = jwt.decode_complete(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused(MALFORMED) from None
        name = unproven["payload"].get("iss")
        issuer = self.by_name.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise TokenRefused(UNKNOWN_ISSUER)
        return issuer.verify(token, unproven["header"], now)


def _seconds(value: object) -> float:
    """Return a time of a token. JSON of Python has infinity, and whole numbers of any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(MALFORMED)
    if not -SECONDS_MAX < value < SECONDS_MAX or not isfinite(value):
        raise TokenRefused(MALFORMED)
    return float(value)


def _is_text(value: str) -> bool:
    """Return whether a text can be encoded in UTF-8."""
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def _claims_of(claims: Mapping[str, Any]) -> Claims:
    """Return the claims for `{claim.NAME}` in rules: texts, and whole numbers as text."""
    found = {
        name: str(value)
        for name, value in claims.items()
        if name not in _TIMES_AND_PLACES and isinstance(value, str | int) and not isinstance(value, bool)
    }
    return tuple(sorted((name, value) for name, value in found.items() if _is_text(name) and _is_text(value)))


def _scope_of(value: object) -> tuple[AccessRule, ...]:
    if not isinstance(value, list):
        raise TokenRefused(NO_SCOPE)
    try:
        return tuple(map(AccessRule.parse, value))
    except InvalidRule:
        raise TokenRefused(NO_SCOPE) from None


def _read_keys(issuer: str, text: str) -> Iterable[TokenKey]:
    """Return the keys in PEM or a JWKS. Raises as `Issuer`."""
    _require_library()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        pem = "-----BEGIN" in text
        found = [("", load_pem_public_key(text.encode()))] if pem else _read_jwks(text)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigError(f"expected a public key in PEM, or a JWKS: {error}") from None
    kids = [kid for kid, _ in found]
    if not found or len({*kids}) < len(kids):
        raise ConfigError("expected a JWKS with at least one public key, each with its own `kid`")
    for kid, key in found:
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        yield TokenKey(kid, _kind_of(key), key, sha256(issuer.encode() + b"\0" + der).hexdigest())


def _read_jwks(text: str) -> list[tuple[str, PublicKeyTypes]]:
    """Return the keys for signatures in a JWKS. Raises `ValueError`, `TypeError` or `LookupError`."""
    import jwt

    found: list[tuple[str, PublicKeyTypes]] = []
    for described in json.loads(text)["keys"]:
        if described.get("use", "sig") != "sig":
            continue
        if described.get("kty") == "oct" or "d" in described:
            raise ConfigError("a secret key in the JWKS: expected the public halves alone")
        try:
            found.append((str(described.get("kid", "")), jwt.PyJWK(described).key))
        except jwt.PyJWTError as error:
            raise ValueError(type(error).__name__) from None
    return found


def _kind_of(key: PublicKeyTypes) -> str:
    """Return the kind of a key in `ALGORITHMS`. Raises `ConfigError` for a key of another kind."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    kind = type(key).__name__
    if isinstance(key, RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigError(f"an RSA key of {key.key_size} bits: expected at least {RSA_BITS_MIN}")
        kind = "RSA"
    elif isinstance(key, EllipticCurvePublicKey):
        kind = key.curve.name
    elif isinstance(key, Ed25519PublicKey):
        kind = "Ed25519"
    if kind not in ALGORITHMS.values():
        raise ConfigError(
            f"a key of kind {kind}: expected one of {', '.join(dict.fromkeys(ALGORITHMS.values()))}"
        )
    return kind


def _require_library() -> None:
    """Raise `NotInstalled` without PyJWT and its library for signatures."""
    try:
        import cryptography  # noqa: F401  # only whether it is there
        import jwt  # noqa: F401
    except ImportError as error:
        raise NotInstalled.module(error.name) from None
