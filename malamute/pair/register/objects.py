"""A register in an object store: created, and replaced where the ETag or the generation is the same.

Credentials and the region are those of the environment, as for other programs of the store; options of
obstore may stand in the URL. An ETag is often the MD5 of the content: no content comes back, so no ETag does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError
from obstore.store import from_url

from malamute.errors import ConfigError, Malformed
from malamute.pair.register import SECONDS, Register
from malamute.pair.state import VALUE_BYTES_MAX


class ObjectEngine:
    """Objects of a bucket."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> tuple[bytes, object] | None:
        """Return an object, with its ETag and generation. Raises: Malformed for a large one."""
        try:
            found = obstore.get(self._store, key)
        except (NotFoundError, FileNotFoundError):
            return None
        meta = found.meta
        if meta["size"] > VALUE_BYTES_MAX:
            raise Malformed(f"object {key} has {meta['size']} bytes: expected the value of a pair")
        return bytes(found.bytes()), {one: meta[one] for one in ("e_tag", "version") if meta.get(one)}

    def put(self, key: str, data: bytes, version: object) -> bool:
        """Create or replace an object."""
        mode: Any = "create" if version is None else version
        try:
            obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def close(self) -> None:
        """Release nothing."""


def open_engine(url: str) -> Register:
    """Return the register of `s3://BUCKET/KEY?OPTION=VALUE`. Raises: ConfigError for an incomplete URL."""
    parts = urlsplit(url)
    key = parts.path.strip("/")
    if not parts.netloc or not key:
        raise ConfigError(f"register {url!r}: expected a bucket and a key, such as s3://bucket/pair.json")
    options: Any = dict(parse_qsl(parts.query))
    try:
        store = from_url(
            f"{parts.scheme}://{parts.netloc}",
            config=options,
            client_options={
                "timeout": timedelta(seconds=SECONDS),
                "connect_timeout": timedelta(seconds=SECONDS),
                "allow_http": options.get("endpoint", "").startswith("http:"),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=SECONDS)},
        )
    except Exception as error:
        raise ConfigError(f"register {parts.scheme}://{parts.netloc}: {error}") from error
    return Register(ObjectEngine(store), key, f"{parts.scheme}://{parts.netloc}/{key}")
