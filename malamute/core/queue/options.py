"""The options of a message: the properties of SEND and REQUEST.

`OPTIONS` lists them. The store has the properties as they came, so `Options` is made from them again when the
broker starts: all times are as durable as the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from malamute.errors import InvalidValue
from malamute.protocol.limits import DURATION_MS_MAX, NUMBER_MAX, TEXT_BYTES_MAX
from malamute.protocol.names import RESERVED_PREFIX, is_name
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.iteration.timers import Timer
    from malamute.core.queue.entry import Entry

PRIORITY_MAX = 9

_PLAIN = {"correlation"}


class Options:
    """The options of a message, as its queue uses them. Times are in seconds; 0 is none."""

    __slots__ = ("due", "expires", "identity", "immediate", "key", "priority", "timer", "tracker")

    def __init__(self, properties: Mapping[str, Any], time_ns: int, ahead_ns: int = 0) -> None:
        get = properties.get
        delay, ttl = get("delay"), get("ttl")
        # A duration begins now and is counted; a moment follows the wall clock.
        time_ns -= ahead_ns
        at = get("at", 0)
        self.due: float = (
            _after(time_ns, delay) if delay is not None else to_seconds(at - ahead_ns) if at != 0 else 0.0
        )
        self.expires: float = _after(time_ns, ttl) if ttl else 0.0
        self.priority: int = get("priority", 0)
        self.tracker: str = get("tracker", "")
        self.identity: str = get("id", "")
        self.key: str = get("key", "")
        self.immediate: bool = get("immediate", False)
        self.timer: Timer | None = None

    @property
    def lasting(self) -> bool:
        """Whether a queue has to remember them for as long as the message is there."""
        return bool(self.priority or self.due or self.expires or self.tracker or self.key)

    @classmethod
    def parse(cls, properties: Mapping[str, Any] | None, time_ns: int, ahead_ns: int = 0) -> Options | None:
        """The options of a message sent at a time in ns; None if it has none. Raises `InvalidValue`.

        `ahead_ns` is how far such times are ahead of those that are counted.
        """
        if not properties:
            return None
        for name, value in properties.items():
            if name not in OPTIONS:
                raise InvalidValue(f"unknown option {name!r}: expected {', '.join(OPTIONS)}")
            holds, words = OPTIONS[name]
            if not holds(value):
                raise InvalidValue(f"invalid option {name!r}: expected {words}")
        if properties.keys() <= _PLAIN:
            return None
        if "delay" in properties and "at" in properties:
            raise InvalidValue("options 'delay' and 'at' together: expected one of them")
        if properties.get("at", 0) > time_ns + DURATION_MS_MAX * 1_000_000:
            raise InvalidValue("invalid option 'at': expected at most ten years ahead")
        return cls(properties, time_ns, ahead_ns)

    @classmethod
    def of(cls, message: Entry, now_ns: int, ahead_ns: int = 0) -> Options | None:
        """Return the options of a stored message, if they last. Messages of the broker itself have none.

        A message from later than now, as the clock was set back, lasts as if it came now.
        """
        properties = message.properties
        if (
            not properties
            or properties.keys() <= _PLAIN
            or "outcome" in properties
            or "service" in properties
        ):
            return None
        options = cls(properties, min(message.time_ns, now_ns), ahead_ns)
        # The window of the identity began when the message was enqueued.
        options.identity = ""
        return options if options.lasting else None


def _after(time_ns: int, milliseconds: int) -> float:
    return to_seconds(time_ns + milliseconds * 1_000_000)


def _is_text(value: Any) -> bool:
    return type(value) is str and value != "" and len(value.encode()) <= TEXT_BYTES_MAX


def _is_correlation(value: Any) -> bool:
    return type(value) is int or (type(value) is str and len(value.encode()) <= TEXT_BYTES_MAX)


def is_address(value: Any) -> bool:
    """Whether a value may be the option `reply_to`."""
    return type(value) is str and is_name(value) and not value.startswith(RESERVED_PREFIX)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


_TEXT = (_is_text, f"a text of 1 to {TEXT_BYTES_MAX} bytes")

OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "correlation": (_is_correlation, f"an integer or a text of at most {TEXT_BYTES_MAX} bytes"),
    "id": _TEXT,
    "tracker": _TEXT,
    "ttl": (_between(1, DURATION_MS_MAX), f"milliseconds from 1 to {DURATION_MS_MAX}"),
    "priority": (_between(0, PRIORITY_MAX), f"an integer from 0 to {PRIORITY_MAX}"),
    "delay": (_between(0, DURATION_MS_MAX), f"milliseconds from 0 to {DURATION_MS_MAX}"),
    "at": (_between(0, NUMBER_MAX), "nanoseconds since 1970, UTC"),
    "reply_to": (is_address, "an address"),
    "key": _TEXT,
    "immediate": (_is_flag, "true or false"),
    "no_reply": (_is_flag, "true or false"),
}
"""Each option: the test of a value, and the expectation in words."""
