"""The public keys of an issuer of tokens, found by OpenID Connect Discovery.

The issuer is a URL. A document below it has the address of the keys, and has to name the issuer itself: so no
other issuer's keys are mistaken for its own. The keys are as safe as the connection, so it uses TLS, without
redirects; loopback is for trying it. The broker fetches nothing: it reads a file, which stays valid when this
fails.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

from malamute.access.token import Issuer
from malamute.config.issuers import KEYS_BYTES_MAX
from malamute.errors import ConfigError

DISCOVERY = "/.well-known/openid-configuration"

ANSWER_SECONDS = 10.0
"""Seconds to wait for an answer, or a part of it."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *request: Any) -> None:
        """Follow no redirect: the answer is an error then."""


def keys_of(issuer: str) -> str:
    """Return the keys of an issuer as a JWKS, for a broker. Raises `ConfigError`."""
    described = _json(_fetch(issuer.rstrip("/") + DISCOVERY), issuer)
    if described.get("issuer") != issuer:
        raise ConfigError(f"the issuer there is {described.get('issuer')!r}: expected {issuer!r}")
    address = described.get("jwks_uri")
    if not isinstance(address, str):
        raise ConfigError(f"{issuer} names no keys: expected jwks_uri as text")
    text = _fetch(address)
    if not isinstance(_json(text, address).get("keys"), list):
        raise ConfigError(f"{address}: expected a JWKS")
    try:
        Issuer(issuer, "", (), text)
    except ConfigError as error:
        raise ConfigError(f"{address}: {error.text}") from None
    return text


def _json(text: str, address: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{address}: expected an object of JSON")
    return found


def _fetch(address: str) -> str:
    _check(address)
    try:
        with build_opener(_NoRedirects).open(address, timeout=ANSWER_SECONDS) as answer:
            body: bytes = answer.read(KEYS_BYTES_MAX + 1)
        text = body.decode()
    except HTTPError as error:
        raise ConfigError(f"{address}: the answer is {error.code}: expected 200") from None
    except (OSError, HTTPException) as error:
        raise ConfigError(f"{address} cannot be fetched: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{address}: expected text") from None
    if len(body) > KEYS_BYTES_MAX:
        raise ConfigError(f"{address} is too large: expected at most {KEYS_BYTES_MAX} bytes")
    return text


def _check(address: str) -> None:
    try:
        parts = urlsplit(address)
        safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    except ValueError:
        safe = False
    if not safe or not parts.hostname or parts.fragment:
        raise ConfigError(f"invalid address {address[:200]!r}: expected one that begins with https://")
