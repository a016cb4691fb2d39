"""A real broker in this process, the faults that it logs, and a client of it that works."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import structlog

import malamute
from malamute.config import Config, SessionConfig
from malamute.core.iteration.faults import FAULT
from malamute.testing import Broker, small_config

QUIET = "the quiet one"
"""The name of all that the client has who works: no input names it."""


class Faults:
    """The faults that a broker has logged, while it is open."""

    def __init__(self) -> None:
        self.found: list[Mapping[str, Any]] = []
        self._before = structlog.get_config()
        structlog.configure(
            processors=[self._note], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False
        )

    def _note(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] == FAULT:
            self.found.append(dict(event))
        raise structlog.DropEvent

    def check(self) -> None:
        """Raise what was found."""
        assert not self.found, self.found

    def close(self) -> None:
        """Let others log as before."""
        structlog.configure(**self._before)


def config() -> Config:
    """Sessions end soon, and the events and the audit are on."""
    small = small_config()
    return replace(
        small,
        session=SessionConfig(expiry=1.0),
        events=replace(small.events, lifecycle=True, settled=True, audit=True),
    )


def broker(directory: Path | None = None) -> Broker:
    """A broker that was started."""
    return Broker(directory, config=config()).start()


class QuietClient:
    """A client that is to work whatever others do. It never waits for longer than `seconds`."""

    def __init__(self, url: str, seconds: float) -> None:
        self._seconds = seconds
        self._client = malamute.connect(url, address=QUIET, timeout=seconds)
        self._stream = self._client.subscribe(QUIET)
        self._mail = self._client.mailbox()
        self._work = self._client.work(QUIET)
        self._rounds = 0

    def __enter__(self) -> QuietClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def round(self) -> None:
        """Publish, send mail, and ask and answer, and get all of it."""
        client, body = self._client, b"%d" % self._rounds
        self._rounds += 1
        client.publish(QUIET, "a", body, assurance="stored")
        assert self._stream.receive(self._seconds).body == body
        client.send(QUIET, "a", body, assurance="stored")
        message = self._mail.receive(self._seconds)
        assert message.body == body
        message.ack()
        replies = client.request(QUIET, "a", body, timeout=self._seconds)
        self._work.receive(self._seconds).reply(body)
        assert [reply.body for reply in replies] == [body]

    def close(self) -> None:
        """Leave."""
        self._client.close()


class Ends(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """End it. Raises what was wrong."""


Made = TypeVar("Made", bound=Ends)


class Lasting(Generic[Made]):
    """Something that is made for many inputs, since it takes long to start."""

    def __init__(self, make: Callable[[], Made], inputs_max: int) -> None:
        self._make = make
        self._inputs_max = inputs_max
        self._made: Made | None = None
        self._inputs = 0

    def get(self) -> Made:
        """It, for one more input."""
        if self._inputs >= self._inputs_max:
            self.close()
        if self._made is None:
            self._made = self._make()
        self._inputs += 1
        return self._made

    def close(self) -> None:
        """End it, if it is there."""
        self._inputs = 0
        if self._made is not None:
            self._made, ending = None, self._made
            ending.close()
