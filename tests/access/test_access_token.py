"""Bearer tokens: whom they prove, and each reason for which one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import AccessRule, token
from malamute.access.token import Issuer, Issuers, TokenRefused
from malamute.errors import ConfigError, NotInstalled

NOW = 1_700_000_000.0
NAME, AUDIENCE = "https://login.example.org", "malamute"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
CLAIMS = {"iss": NAME, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 60}


def pem(key: Any) -> str:
    """The public half of a key."""
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found.decode()


def jwks(**keys: Any) -> str:
    """The public halves of keys, each with its id."""
    kinds = {"RSA": jwt.algorithms.RSAAlgorithm, "EC": jwt.algorithms.ECAlgorithm}
    described = []
    for kid, key in keys.items():
        kind = "RSA" if isinstance(key, rsa.RSAPrivateKey) else "EC"
        described.append({**kinds[kind].to_jwk(key.public_key(), as_dict=True), "kid": kid})
    return json.dumps({"keys": described})


def signed(
    key: Any = RSA, algorithm: str = "RS256", headers: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A token that is good but for what is said here; a claim that is None is left out."""
    merged = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(merged, key, algorithm, headers)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], payload: Any, sign: Callable[[bytes], bytes]) -> str:
    """A token as somebody makes it whose library would refuse to."""
    text = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(payload).encode())}"
    return f"{text}.{b64(sign(text.encode()))}"


def confused(data: bytes) -> bytes:
    """The public key taken for a shared secret."""
    return hmac.new(pem(RSA).encode(), data, hashlib.sha256).digest()


def issuers(keys: str = "", algorithms: tuple[str, ...] = ("RS256",), **options: Any) -> Issuers:
    return Issuers([Issuer(NAME, AUDIENCE, algorithms, keys or pem(RSA), **options)])


def refusal(text: str, among: Issuers | None = None, now: float = NOW) -> str:
    with pytest.raises(TokenRefused) as refused:
        (among or issuers()).verify(text, now)
    assert len(text) < 10 or text not in str(refused.value)
    return refused.value.reason


def test_a_good_token_says_who_somebody_is_and_what_is_known_of_him() -> None:
    bearer = issuers().verify(signed(ward=3, tenant="a", admin=True, roles=["x"], iat=NOW, jti="7"), NOW)
    assert bearer.user == "ann"
    assert bearer.claims == (("sub", "ann"), ("tenant", "a"), ("ward", "3"))
    assert bearer.expires_at == NOW + 60
    assert bearer.key in issuers().keys
    assert bearer.scope is None


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS512"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")],
)
def test_each_kind_of_key_verifies_its_algorithms(key: Any, algorithm: str) -> None:
    among = issuers(pem(key), (algorithm,))
    assert among.verify(signed(key, algorithm), NOW).user == "ann"


REFUSED = {
    "nothing": ("", token.MALFORMED),
    "no token": ("a.b.c", token.MALFORMED),
    "two parts": ("e30.e30", token.MALFORMED),
    "no map": (by_hand({"alg": "RS256"}, [1], confused), token.MALFORMED),
    "deep": (f"e30.{b64(b'[' * 5000)}.", token.MALFORMED),
    "alg none": (by_hand({"alg": "none"}, CLAIMS, lambda data: b""), token.WRONG_ALGORITHM),
    "no alg": (by_hand({"typ": "JWT"}, CLAIMS, confused), token.WRONG_ALGORITHM),
    "alg of another kind": (by_hand({"alg": ["RS256"]}, CLAIMS, confused), token.WRONG_ALGORITHM),
    "key confusion": (by_hand({"alg": "HS256"}, CLAIMS, confused), token.WRONG_ALGORITHM),
    "alg not listed": (signed(algorithm="RS384"), token.WRONG_ALGORITHM),
    "another's key": (signed(OTHER_RSA), token.WRONG_SIGNATURE),
    "changed": (signed()[:-6] + "AAAAAA", token.WRONG_SIGNATURE),
    "another audience": (signed(aud="other"), token.WRONG_AUDIENCE),
    "no audience": (signed(aud=None), token.WRONG_AUDIENCE),
    "unknown issuer": (signed(iss="https://evil.example.org"), token.UNKNOWN_ISSUER),
    "no issuer": (signed(iss=None), token.UNKNOWN_ISSUER),
    "expired": (signed(exp=NOW), token.EXPIRED),
    "not yet valid": (signed(nbf=NOW + 1), token.TOO_EARLY),
    "no expiry": (signed(exp=None), token.NO_EXPIRY),
    "endless": (by_hand({"alg": "RS256"}, {**CLAIMS, "exp": float("inf")}, confused), token.WRONG_SIGNATURE),
    "no user": (signed(sub=None), token.NO_USER),
    "an empty user": (signed(sub=""), token.NO_USER),
    "a reserved user": (signed(sub="$token.1"), token.NO_USER),
    "half of a character": (signed(sub="\ud800"), token.NO_USER),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_by_name(case: str) -> None:
    text, reason = REFUSED[case]
    assert refusal(text) == reason


@pytest.mark.parametrize("value", ["x", True, float("inf"), float("nan"), 10**400, None, [1]], ids=repr)
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    key = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    text = by_hand({"alg": "RS256"}, {**CLAIMS, "exp": value}, lambda data: key.sign(data, RSA))
    assert refusal(text) == token.MALFORMED


def test_clocks_may_differ_by_the_leeway() -> None:
    among = issuers(leeway_seconds=5)
    assert among.verify(signed(exp=NOW - 4), NOW).expires_at == NOW + 1
    assert among.verify(signed(nbf=NOW + 5), NOW).user == "ann"
    assert refusal(signed(exp=NOW - 5), among) == token.EXPIRED
    assert refusal(signed(nbf=NOW + 6), among) == token.TOO_EARLY


def test_a_key_is_chosen_by_its_id_and_of_the_kind_that_the_algorithm_needs() -> None:
    among = issuers(jwks(a=RSA, b=OTHER_RSA, c=EC), ("RS256", "ES256"))
    assert (
        among.verify(signed(headers={"kid": "a"}), NOW).key
        != among.verify(signed(OTHER_RSA, headers={"kid": "b"}), NOW).key
    )
    assert among.verify(signed(EC, "ES256"), NOW).user == "ann"
    assert refusal(signed(headers={"kid": "x"}), among) == token.UNKNOWN_KEY
    assert refusal(signed(headers={"kid": "c"}), among) == token.UNKNOWN_KEY
    assert refusal(signed(), among) == token.UNKNOWN_KEY
    assert refusal(signed(headers={"kid": "b"}), among) == token.WRONG_SIGNATURE
    assert refusal(by_hand({"alg": "RS256", "kid": 7}, CLAIMS, confused), among) in (
        token.MALFORMED,
        token.UNKNOWN_KEY,
    )


def test_another_claim_may_be_the_user() -> None:
    assert issuers(user_claim="email").verify(signed(email="ann@x", sub="1"), NOW).user == "ann@x"


def test_a_scope_is_a_list_of_rules() -> None:
    among = issuers(scope_claim="scope")
    rules = ["publish stream/prices"]
    assert among.verify(signed(scope=rules), NOW).scope == tuple(map(AccessRule.parse, rules))
    assert among.verify(signed(scope=[]), NOW).scope == ()
    for scope in (None, "publish stream/prices", ["nonsense"], [7]):
        assert refusal(signed(scope=scope), among) == token.NO_SCOPE


def private(key: Any) -> str:
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found.decode()


@pytest.mark.parametrize(
    ("keys", "algorithms", "words"),
    [
        ("nothing", ("RS256",), "expected a public key in PEM, or a JWKS"),
        ("[]", ("RS256",), "expected a public key in PEM, or a JWKS"),
        pytest.param("[" * 100_000, ("RS256",), "expected a public key in PEM, or a JWKS", id="nested"),
        ('{"keys": []}', ("RS256",), "at least one public key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', ("RS256",), "a secret key in the JWKS"),
        (private(RSA), ("RS256",), "expected a public key in PEM, or a JWKS"),
        (pem(rsa.generate_private_key(65537, 1024)), ("RS256",), "an RSA key of 1024 bits"),
        (pem(ec.generate_private_key(ec.SECP256K1())), ("ES256",), "a key of kind secp256k1"),
        (pem(EC), ("ES256", "RS256"), "no key for RS256"),
        (pem(EC), ("ES384",), "no key for ES384"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(keys: str, algorithms: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        issuers(keys, algorithms)


def test_two_keys_with_one_id_are_refused() -> None:
    twice = json.loads(jwks(a=RSA))["keys"] + json.loads(jwks(a=OTHER_RSA))["keys"]
    with pytest.raises(ConfigError, match="its own `kid`"):
        issuers(json.dumps({"keys": twice}))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(NotInstalled, match=r"jwt is missing: pip install 'malamute\[jwt\]' \(error 701\)"):
        issuers()


def test_the_documentation_names_every_reason() -> None:
    page = Path(__file__).parents[2] / "docs" / "security.md"
    words = " ".join(page.read_text(encoding="utf-8").split())
    assert [reason for reason in token.REASONS if f"`{reason}`" not in words] == []


@given(st.text(max_size=50), st.recursive(st.none() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_nothing_else_comes_of_any_token(text: str, value: Any) -> None:
    for made in (
        text,
        f"{text}.{text}.{text}",
        by_hand({"alg": value, "kid": value}, {"iss": NAME}, confused),
    ):
        refusal(made + " ")
