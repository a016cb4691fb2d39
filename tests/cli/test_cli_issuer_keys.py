"""`malamute keys fetch`: the keys of an issuer by discovery, and a file that stays if anything is wrong."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cli_commands import Run
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from malamute.cli.issuer_keys import DISCOVERY
from malamute.config.issuers import KEYS_BYTES_MAX, read_issuers
from malamute.config.sections import TokenIssuer

KEY = Ed25519PrivateKey.generate()
JWKS = {"keys": [{**OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "1", "use": "sig"}]}
SECRET = {"keys": [OKPAlgorithm.to_jwk(KEY, as_dict=True)]}


class Provider:
    """An identity provider: its answers by their paths, as JSON or as they are, and their status."""

    def __init__(self) -> None:
        answers = self.answers = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b""))
                self.send_response(status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"http://127.0.0.1:{self.server.server_port}/realm"
        self.put(f"/realm{DISCOVERY}", {"issuer": self.name, "jwks_uri": f"{self.name}/keys"})
        self.put("/realm/keys", JWKS)

    def put(self, path: str, body: Any, status: int = 200) -> None:
        self.answers[path] = status, body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.01,))
    thread.start()
    yield provider
    provider.server.shutdown()
    thread.join()
    provider.server.server_close()


def test_the_keys_are_those_that_the_broker_takes_tokens_by(
    run: Run, provider: Provider, tmp_path: Path
) -> None:
    file = tmp_path / "issuer.jwks"
    changed = [json.loads(run("keys", "fetch", provider.name, str(file), "--json").stdout) for _ in range(2)]
    assert changed == [{"issuer": provider.name, "file": str(file), "changed": new} for new in (True, False)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    issuers = read_issuers([TokenIssuer(provider.name, "malamute", str(file), ("EdDSA",))])
    claims = {"iss": provider.name, "aud": "malamute", "sub": "ann", "exp": 100}
    assert issuers.verify(jwt.encode(claims, KEY, "EdDSA", {"kid": "1"}), 50.0).user == "ann"


DISCOVERED, KEYS = f"/realm{DISCOVERY}", "/realm/keys"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (DISCOVERED, b"", 404, "the answer is 404: expected 200"),
        (DISCOVERED, b"", 302, "the answer is 302: expected 200"),
        (DISCOVERED, b"<html>", 200, "expected an object of JSON"),
        (DISCOVERED, b"[" * 100_000, 200, "expected an object of JSON"),
        (DISCOVERED, [1], 200, "expected an object of JSON"),
        (
            DISCOVERED,
            {"issuer": "https://other", "jwks_uri": "https://other/keys"},
            200,
            "the issuer there is",
        ),
        (DISCOVERED, {"issuer": "{}"}, 200, "names no keys"),
        (DISCOVERED, {"issuer": "{}", "jwks_uri": 1}, 200, "names no keys"),
        (DISCOVERED, {"issuer": "{}", "jwks_uri": "file:///etc/passwd"}, 200, "invalid address"),
        (DISCOVERED, {"issuer": "{}", "jwks_uri": "http://192.0.2.1/"}, 200, "invalid address"),
        (DISCOVERED, {"issuer": "{}", "jwks_uri": "https://[/"}, 200, "invalid address"),
        (KEYS, b"", 302, "the answer is 302"),
        (KEYS, b"\xff", 200, "expected text"),
        (KEYS, {"keys": []}, 200, "at least one public key"),
        (KEYS, {"keys": 1}, 200, "expected a JWKS"),
        (KEYS, SECRET, 200, "a secret key in the JWKS"),
        (KEYS, {"keys": [{"kty": "EC"}]}, 200, "expected a public key"),
        (KEYS, b" " * KEYS_BYTES_MAX + json.dumps(JWKS).encode(), 200, "is too large"),
    ],
)
def test_what_is_wrong_leaves_the_file_as_it_was(
    run: Run, provider: Provider, tmp_path: Path, path: str, body: Any, status: int, words: str
) -> None:
    file = tmp_path / "issuer.jwks"
    file.write_text("as it was")
    if isinstance(body, dict) and body.get("issuer") == "{}":
        body = {**body, "issuer": provider.name}
    provider.put(path, body, status)
    assert words in run("keys", "fetch", provider.name, str(file), exit_code=1).stderr
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("issuer.jwks", "as it was")]


@pytest.mark.parametrize(
    "issuer", ["login.example.org", "http://login.example.org", "file:///etc", "https://", "https://a/#b", ""]
)
def test_an_issuer_is_an_address_that_is_safe_to_ask(run: Run, tmp_path: Path, issuer: str) -> None:
    assert "expected one that begins with https://" in run("keys", "fetch", issuer, "x", exit_code=1).stderr


def test_one_that_does_not_answer_and_a_file_that_cannot_be_written(
    run: Run, provider: Provider, tmp_path: Path
) -> None:
    stderr = run("keys", "fetch", provider.name, str(tmp_path / "none" / "x"), exit_code=1).stderr
    assert "cannot be written" in stderr
    closed = "http://127.0.0.1:1/"
    assert "cannot be fetched" in run("keys", "fetch", closed, str(tmp_path / "x"), exit_code=1).stderr
