"""Demand for a stream without a journal: messages that match no subscription need not be published.

The broker answers with the criteria of a stream's subscriptions. A publisher may match its messages against
them before it publishes, with the tables of receivers (`malamute.matching.Filter`). The criteria are as old
as the last query, so messages for a new subscription may be withheld until the next one. Without an answer of
the broker all messages are in demand.
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
"""Queries the broker for the demand."""


class DemandBase:
    """The demand for one stream.

    `asked` counts the messages that were matched, and `withheld` those without demand.
    """

    def __init__(self, stream: str, ask: Ask, *, refresh: Span) -> None:
        """Raise `InvalidValue` if `refresh` is no span of 0 seconds or more."""
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
        """Return whether the broker is to be queried."""
        return monotonic() >= self._until

    async def _refresh(self) -> None:
        # Other tasks use the old criteria until the answer arrives.
        self._until = monotonic() + self._refresh_seconds
        try:
            found = await self._ask()
        except (LinkError, Failed):
            self._everything = True
        except BaseException:
            # The query was refused or cancelled: the criteria are still the old ones.
            self._until = 0.0
            raise
        else:
            self._everything = found.everything or not self._file(found.criteria)

    def _file(self, criteria: Iterable[Iterable[Any]]) -> bool:
        """File criteria by their subjects. Return False if a criterion cannot be filed so."""
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
