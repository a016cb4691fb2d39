"""Publishing in bulk, for blocking programs. `link/publisher` has the mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from types import TracebackType
from typing import Any, Self, Unpack

from malamute.client.link.publisher import Carry, PublisherBase
from malamute.client.options import PublisherOptions, SendOptions, Span
from malamute.client.session.codecs import ABSENT, Content, content_of
from malamute.client.session.outbox import Command
from malamute.client.sync.driver import BlockingDriver, SharedDriver
from malamute.client.sync.receipts import Receipt
from malamute.errors import MalamuteError
from malamute.protocol.batch import Body, Headers


class Publisher(PublisherBase):
    """Messages to one stream, or to one mailbox. Made by `Client.publisher` and `Client.sender`.

    A context manager, which flushes at the end of the block and raises the first refusal.
    """

    _driver: BlockingDriver

    def publish(
        self,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Publish one message, and return its receipt. The call does not wait, unless the window is full.

        `json` is as for `Client.publish`. A message to a mailbox may have the `options` of `Client.send`, but
        for the tracker.

        Raises:
            InvalidValue: the subject, a header, the body or an option cannot be sent.
            TooLarge: the subject or the message exceeds a limit.
            TryLater: the window stayed full for the publisher's timeout. The message is not published.
            ConnectionLost: the broker was away for that time. The message is not published.
            Closed: the publisher is closed.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        if self._is_due() or not self._driver.is_owner:
            command, place = self._driver.run(self._publish(subject, body, headers, options))
        else:
            command, place = self._add(subject, body, headers, options)
            if self._batch.full:
                self._driver.run(self._ship())
        return Receipt(command, place, self._wait_for)

    def publish_many(
        self,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None = None,
    ) -> None:
        """Publish many messages, given as columns of one length. `flush` waits until they are durable.

        When a message cannot be sent, none of them is; when the window stays full, the batches before are
        published.

        Raises:
            InvalidValue: the columns differ in length, or a message cannot be sent.
            TooLarge, TryLater, ConnectionLost, Closed: as `publish`.
        """
        self._driver.run(self._publish_many(subjects, bodies, headers_list))

    def flush(self, timeout: Span | None = None) -> None:
        """Send the last messages, and wait until all are confirmed, with the assurance `stored`.

        `timeout` is in seconds; None is the publisher's own.

        Raises:
            TimedOut: the confirmations did not come in time.
            MalamuteError: the error of the first batch that was refused since the last flush.
        """
        self._driver.run(self._flush(timeout))

    def close(self) -> None:
        """Flush for the last time. Raises as `flush`."""
        self._driver.run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MalamuteError:
            # The exception of the block must not be hidden by a later one.
            if kind is None:
                raise

    def _wait_for(self, command: Command, timeout: Span | None) -> None:
        self._driver.run(self._wait(command, timeout))


class SharedPublisher(Publisher):
    """A publisher for any thread: a lock of its own holds the batch together.

    The owner of the socket ships the batch. A batch that is due, or nearly full, takes a message within a
    call of the client alone.
    """

    _driver: SharedDriver

    def __init__(self, driver: SharedDriver, carry: Carry, **options: Unpack[PublisherOptions]) -> None:
        self._lock = RLock()
        super().__init__(driver, carry, **options)

    def publish(
        self,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Publish one message, as `Publisher` does."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        with self._lock:
            due = self._is_due() or self._driver.forked
            if not due:
                placed = PublisherBase._add(self, subject, body, headers, options)
        if due:
            placed = self._driver.run(self._publish(subject, body, headers, options))
        elif self._batch.full:
            self._driver.run(self._ship())
        return Receipt(*placed, self._wait_for)

    def _add(
        self, subject: str, body: Body, headers: Headers | None, options: SendOptions | None
    ) -> tuple[Command, int]:
        with self._lock:
            if self._batch.full:
                # Another thread was faster, since this one was admitted.
                self._hand_over()
            return super()._add(subject, body, headers, options)

    def _hand_over(self) -> None:
        with self._lock:
            super()._hand_over()
