"""A register in etcd, by its JSON gateway: a transaction that compares revision and content.

Reads are linearizable, which is etcd's default. The library knows neither users nor several endpoints: after
a failure the next call connects and logs in anew, at the first endpoint that answers.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from etcd3gw.client import Etcd3Client

from malamute.errors import ConfigError
from malamute.pair.register import SECONDS, Register

PORT = 2379


class EtcdEngine:
    """Keys of etcd."""

    def __init__(self, endpoints: list[tuple[str, int]], user: str, password: str, **options: Any) -> None:
        self._endpoints = endpoints
        self._user = user
        self._password = password
        self._options = options
        self._client: Etcd3Client | None = None

    def get(self, key: str) -> tuple[bytes, object] | None:
        """Return the value of a key, with its revision."""
        found = self._post("/kv/range", {"key": _text(key.encode())}).get("kvs")
        if not found:
            return None
        data = b64decode(found[0].get("value", ""))
        return data, (int(found[0]["mod_revision"]), data)

    def put(self, key: str, data: bytes, version: Any) -> bool:
        """Put a value in a transaction."""
        name = _text(key.encode())
        if version is None:
            conditions = [{"key": name, "target": "CREATE", "create_revision": "0"}]
        else:
            revision, content = version
            conditions = [
                {"key": name, "target": "MOD", "mod_revision": f"{revision}"},
                {"key": name, "target": "VALUE", "value": _text(content)},
            ]
        asked = {
            "compare": [{**one, "result": "EQUAL"} for one in conditions],
            "success": [{"request_put": {"key": name, "value": _text(data)}}],
        }
        return bool(self._post("/kv/txn", asked).get("succeeded"))

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.session.close()
            self._client = None

    def _post(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask one endpoint. Raises anything."""
        client = self._client or self._connect()
        try:
            answer: dict[str, Any] = client.post(client.get_url(path), json=asked)
        except BaseException:
            self._next()
            raise
        return answer

    def _connect(self) -> Etcd3Client:
        """Return a client of the first endpoint that answers. Raises the fault of the last one."""
        for left in reversed(range(len(self._endpoints))):
            try:
                return self._log_in(*self._endpoints[0])
            except Exception:
                self._next()
                if not left:
                    raise
        raise AssertionError("there is an endpoint")

    def _next(self) -> None:
        self.close()
        self._endpoints.append(self._endpoints.pop(0))

    def _log_in(self, host: str, port: int) -> Etcd3Client:
        client = self._client = Etcd3Client(host, port, timeout=SECONDS, api_path=None, **self._options)
        # An environment that names other certificates, or a proxy, is for other programs.
        client.session.trust_env = False
        client.get_url("")  # asks for the version
        if self._user:
            asked = {"name": self._user, "password": self._password}
            token = client.post(client.get_url("/auth/authenticate"), json=asked)["token"]
            client.session.headers["Authorization"] = token
        return client


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def open_engine(url: str) -> Register:
    """Return the register of `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/KEY`; `etcds` is with TLS.

    Raises: ConfigError for an incomplete URL.
    """
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    key = unquote(parts.path.strip("/"))
    files = dict(parse_qsl(parts.query))
    try:
        endpoints = [_endpoint(host) for host in hosts.split(",")]
        if not key or set(files) - {"ca", "cert", "key"}:
            raise ValueError(key)
    except ValueError as error:
        raise ConfigError(
            f"register {parts.scheme}://{hosts}{parts.path}: expected hosts and a key, such as"
            " etcd://one:2379,two:2379/malamute/pair; ?ca=, cert= and key= name files"
        ) from error
    engine = EtcdEngine(
        endpoints,
        unquote(user),
        unquote(password),
        protocol="https" if parts.scheme == "etcds" else "http",
        ca_cert=files.get("ca"),
        cert_cert=files.get("cert"),
        cert_key=files.get("key"),
    )
    return Register(engine, key, f"{parts.scheme}://{hosts}/{key}")


def _endpoint(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or PORT
