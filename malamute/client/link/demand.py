"""What a publisher need not send: messages of a stream without a journal that nobody wants.

The broker says what the subscriptions of a stream ask for. A publisher that is willing to looks there before
it publishes, with the tables that receivers filter with (`malamute.matching.Filter`). What it knows is as old
as its last question, so what a new subscription wants may be withheld until the next one. Where the broker
does not say it, or cannot be asked, everything is wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from malamute.client.options import Span, pause
from malamute.errors import Failed, LinkError

if TYPE_CHECKING:
    from malamute.matching import Filter
    from malamute.protocol.admin import StreamDemand

Ask = Callable[[], Awaitable["StreamDemand"]]
"""Asks the broker for the demand."""


class DemandBase:
    """What is wanted of one stream.

    `asked` counts the messages that were asked about, and `withheld` those of them that nobody wants.
    """

    def __init__(self, stream: str, ask: Ask, *, refresh: Span) -> None:
        """Raises `InvalidValue` if `refresh` is no span of 0 seconds or more."""
        self.stream = stream
        self.asked = self.withheld = 0
        self._ask = ask
        self._refresh_seconds = pause("refresh", refresh)
        self._until = 0.0
        self._everything = True
        self._subjects: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
        self._filters: list[Filter] = []

    @property
    def _is_old(self) -> bool:
        """Whether to ask the broker."""
        return monotonic() >= self._until

    async def _refresh(self) -> None:
        # Tasks beside this one go by what is known until the answer comes.
        self._until = monotonic() + self._refresh_seconds
        try:
            found = await self._ask()
        except (LinkError, Failed):
            self._everything = True
        except BaseException:
            # Refused, or cancelled: what is known is as old as before.
            self._until = 0.0
            raise
        else:
            self._everything = found.everything or not self._file(found.criteria)

    def _file(self, criteria: Iterable[Iterable[Any]]) -> bool:
        """File criteria by what they say of the subject. False if one of them says it in another way."""
        by_family: dict[str, list[str]] = {"exact": [], "prefix": [], "topic": [], "topic-amqp": []}
        for family, pattern in criteria:
            if family not in by_family:
                return False
            by_family[family].append(pattern)
        from malamute.matching import Filter  # most clients need no matching

        self._subjects, self._prefixes = {*by_family["exact"]}, (*by_family["prefix"],)
        self._filters = [Filter(by_family["topic"]), Filter(by_family["topic-amqp"], "topic-amqp")]
        return True

    def _is_wanted(self, subject: str) -> bool:
        self.asked += 1
        if (
            self._everything
            or subject in self._subjects
            or subject.startswith(self._prefixes)
            or any(wanted.matches(subject) for wanted in self._filters)
        ):
            return True
        self.withheld += 1
        return False
