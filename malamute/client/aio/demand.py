"""Demand of a stream, for asyncio programs: messages without demand need not be published."""

from __future__ import annotations

from malamute.client.link.demand import DemandBase


class Demand(DemandBase):
    """The demand for one stream. Made by `Client.demand`."""

    async def wants(self, subject: str) -> bool:
        """Return whether a subscription may match a message with this subject.

        Once in a while the broker is queried. Without its answer the result is true.

        Raises:
            AccessRefused: the user may not publish to the stream.
            InvalidName: the name of the stream is invalid.
        """
        if self._is_old:
            await self._refresh()
        return self._is_wanted(subject)
