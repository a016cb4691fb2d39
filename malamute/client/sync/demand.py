"""What a blocking program need not publish."""

from __future__ import annotations

from malamute.client.link.demand import Ask, DemandBase
from malamute.client.options import Span
from malamute.client.sync.driver import BlockingDriver


class Demand(DemandBase):
    """What is wanted of one stream. Made by `Client.demand`."""

    def __init__(self, driver: BlockingDriver, stream: str, ask: Ask, *, refresh: Span) -> None:
        super().__init__(stream, ask, refresh=refresh)
        self._driver = driver

    def wants(self, subject: str) -> bool:
        """Whether anybody may want a message with this subject.

        Once in a while it asks the broker, and waits for its answer. If there is none, the answer is yes.

        Raises:
            AccessRefused: the user may not publish to the stream.
            InvalidName: the stream is no valid name.

        """
        if self._is_old:
            self._driver.run(self._refresh())
        return self._is_wanted(subject)
