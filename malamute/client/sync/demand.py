"""Demand of a stream, for blocking programs: messages without demand need not be published."""

from __future__ import annotations

from malamute.client.link.demand import Ask, DemandBase
from malamute.client.options import Span
from malamute.client.sync.driver import BlockingDriver


class Demand(DemandBase):
    """The demand for one stream. Made by `Client.demand`."""

    def __init__(self, driver: BlockingDriver, stream: str, ask: Ask, *, refresh: Span) -> None:
        super().__init__(stream, ask, refresh=refresh)
        self._driver = driver

    def wants(self, subject: str) -> bool:
        """Return whether a subscription may match a message with this subject.

        Once in a while the broker is queried. Without its answer the result is true.

        Raises:
            AccessRefused: the user may not publish to the stream.
            InvalidName: the name of the stream is invalid.
        """
        if self._is_old:
            self._driver.run(self._refresh())
        return self._is_wanted(subject)
