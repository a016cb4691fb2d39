"""Publishing in bulk, on an event loop. `link/publisher` has the mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from malamute.client.aio.receipts import Receipt
from malamute.client.link.publisher import PublisherBase
from malamute.client.options import SendOptions, Span
from malamute.client.session.codecs import ABSENT, Content, content_of
from malamute.errors import MalamuteError
from malamute.protocol.batch import Body, Headers


class Publisher(PublisherBase):
    """As `malamute.Publisher`, with a timer for lingering messages."""

    async def publish(
        self,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Publish one message, and return its receipt. The call does not wait, unless the window is full.

        Raises as `malamute.Publisher.publish`. When it raises, or is cancelled before it returns, and the
        message was not refused, the message is published or not as a whole.
        """
        self._driver.check_owner()
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        command, place = await self._publish(subject, body, headers, options)
        if self._batch.records:
            self._driver.within(self._linger)
        return Receipt(command, place, self._wait)

    async def publish_many(
        self,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None = None,
    ) -> None:
        """Publish many messages, given as columns of one length. `flush` waits until they are durable.

        Raises as `malamute.Publisher.publish_many`.
        """
        await self._publish_many(subjects, bodies, headers_list)

    async def flush(self, timeout: Span | None = None) -> None:
        """Send the last messages, and wait until all are confirmed, with the assurance `stored`.

        `timeout` is in seconds. Raises as `malamute.Publisher.flush`.
        """
        await self._flush(timeout)

    async def close(self) -> None:
        """Flush for the last time. Raises as `flush`."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MalamuteError:
            # The exception of the block must not be hidden by a later one.
            if kind is None:
                raise
