"""A real broker for tests, in the process of the test.

    with malamute.testing.Broker() as broker, malamute.connect(broker.url) as client:
        client.send("bob", "hello", b"...")

The whole broker runs on a thread of its own: the same core, loop and socket, on the store in memory unless
a directory is given. A broker on a directory keeps its data over a restart.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from malamute.config import Config, LimitsConfig, StorageConfig
from malamute.server.daemon import open_broker
from malamute.server.loop import Loop

STORE_BYTES = 64 * 1024 * 1024


class Broker:
    """Broker for tests, at `url` on a free port of this machine.

    `directory` makes it durable, in a store of 64 MiB unless `config` says otherwise. `config` gives every
    other option; its endpoints are not used.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, config: Config | None = None
    ) -> None:
        config = config or small_config()
        kind = "memory" if directory is None else "lmdb"
        path = Path(directory) if directory is not None else config.storage.directory
        self._config = replace(config, storage=replace(config.storage, kind=kind, directory=path))
        self._endpoint = "tcp://127.0.0.1:*"
        self._context: zmq.Context[Any] | None = None
        self._loop: Loop | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """URL for clients; the same over a restart."""
        return self._endpoint

    def start(self) -> Broker:
        """Start the broker, and return when clients can connect."""
        assert self._thread is None, "the broker runs already"
        listen = replace(self._config.listen, endpoints=(self._endpoint,))
        self._context = zmq.Context()
        try:
            self._loop = open_broker(replace(self._config, listen=listen), self._context)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._endpoint = self._loop.endpoints[0]
        self._thread = threading.Thread(target=self._run, name="malamute-broker", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except BaseException as error:  # raised again where the test can see it
            self._failure = error

    def stop(self) -> None:
        """Shut the broker down cleanly. Raises the error of its thread, if there is any."""
        if self._thread is None or self._loop is None or self._context is None:
            return
        self._loop.stop()
        self._thread.join()
        self._thread = None
        self._context.term()
        if self._failure is not None:
            raise self._failure

    def restart(self) -> None:
        """Stop the broker and start it again on the same port."""
        self.stop()
        self.start()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def small_config() -> Config:
    """The configuration of a broker for tests: a small store, and limits that fit into it."""
    limits = LimitsConfig(message_bytes=4 * 1024 * 1024)
    return Config(storage=StorageConfig(size=STORE_BYTES), limits=limits)
