"""A queue as a source of a session, and the client's commands about deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from malamute.core.queue.consumer import Consumer, Owner
from malamute.core.queue.queue import Queue
from malamute.errors import InvalidValue, MalamuteError
from malamute.protocol.bounce import why_not_bounced
from malamute.protocol.fields import Ranges

if TYPE_CHECKING:
    from malamute.core.iteration.stage import WhenStored
    from malamute.matching import Selector


class QueueSource:
    """One consumer of a queue, as its session has it: the owner of a mailbox, or an offer to a service.

    Commands about deliveries raise `NotOutstanding` if one is not held, and then change nothing.
    """

    def __init__(
        self, session: Owner, source: int, queue: Queue, selector: Selector, ack_timeout: float = 0.0
    ) -> None:
        """`ack_timeout` is in seconds; 0 is that of the queue."""
        self.queue = queue
        self.selector = selector
        self.cost_bytes = 0
        """The memory of its selector in bytes."""
        ack_timeout = ack_timeout or queue.usage.policy.ack_timeout_seconds
        self.consumer = Consumer(session, source, ack_timeout, queue.effects.now)
        queue.dispatcher.join(self.consumer, selector)

    def grant(self, messages: int, size_bytes: int) -> None:
        """Add credit, and assign ready messages."""
        self.consumer.grant(messages, size_bytes)
        self.queue.dispatcher.serve(self.consumer)

    def block(self) -> None:
        """Pause while the peer takes no messages: other consumers get its messages."""
        self.queue.dispatcher.remove_waiter(self.consumer)

    def unblock(self) -> None:
        """The peer can take messages again."""
        self.queue.dispatcher.serve(self.consumer)

    def cancel(self) -> None:
        """End the consumer: its messages are ready for others."""
        self.queue.leave(self.consumer)

    # About deliveries

    def acknowledge(self, ranges: Ranges) -> None:
        """Acknowledge and remove any number of messages, on which nothing else depends."""
        queue, consumer = self.queue, self.consumer
        sequences = consumer.held(ranges)
        if len(sequences) == 1 and queue.finish(consumer, sequences[0]):
            return
        queue.detach(consumer, sequences)
        worker = consumer.session.address
        if len(sequences) <= queue.steps.step_messages:
            queue.settlement.settle(sequences, "acknowledged", worker=worker)
            return
        # No consumer takes them before their step.
        queue.take_back(sequences)
        queue.steps.run(sequences, lambda some: queue.settlement.settle(some, "acknowledged", worker=worker))

    def complete(self, sequences: Sequence[int], *, bound: bool) -> None:
        """Acknowledge messages that it is known to hold.

        `bound` binds it to all that this iteration stores: if that fails, they are ready again.
        """
        queue, consumer = self.queue, self.consumer
        if len(sequences) == 1 and not bound and queue.finish(consumer, sequences[0]):
            return
        queue.detach(consumer, sequences)
        queue.settlement.settle(sequences, "acknowledged", bound=bound, worker=consumer.session.address)

    def give_back(self, ranges: Ranges, delay: float | None) -> None:
        """Return tried messages to the queue, after a delay in seconds; None is the backoff."""
        self.queue.give_back(self.consumer, self.consumer.held(ranges), delay)

    def reject(self, ranges: Ranges, reason: str) -> None:
        """Reject messages for good."""
        queue, consumer = self.queue, self.consumer
        sequences = consumer.held(ranges)
        queue.detach(consumer, sequences)
        queue.take_back(sequences)
        worker = consumer.session.address
        queue.steps.run(
            sorted(sequences), lambda some: queue.settlement.dead_letter(some, "rejected", reason, worker)
        )

    def bounce(self, ranges: Ranges, reason: str) -> None:
        """Their senders are to have them back. Raises `InvalidValue` if one cannot be given back."""
        queue, consumer = self.queue, self.consumer
        if queue.kind != "mailbox":
            raise InvalidValue("a request cannot bounce: expected a reply to it, or a message of a mailbox")
        sequences = consumer.held(ranges)
        for sequence in sequences:
            entry = queue.entries[sequence]
            if words := why_not_bounced(entry.sender, entry.properties):
                raise InvalidValue(f"message {sequence} cannot bounce: {words}")
        queue.detach(consumer, sequences)
        queue.take_back(sequences)
        worker = consumer.session.address
        queue.steps.run(sorted(sequences), lambda some: queue.settlement.bounce(some, reason, worker))

    def report(self, ranges: Ranges) -> None:
        """Restart the deadlines of messages in progress."""
        self.consumer.renew(self.consumer.held(ranges), self.queue.effects.now)

    def release(self, ranges: Ranges) -> None:
        """Release untouched messages to the queue as if they had not been delivered."""
        sequences = self.consumer.held(ranges)
        self.queue.steps.run(sorted(sequences), self._released(sequences), requeues=True)

    def drain(self, ranges: Ranges, released: WhenStored) -> None:
        """Take no more messages, and return all held ones outside of these ranges as untouched.

        `released` is called when the return is stored, or with the error that prevented it; at once if
        nothing goes back.
        """
        queue, consumer = self.queue, self.consumer
        consumer.drained = True
        sequences = consumer.beside(ranges)
        waited: set[int] = set()
        release = self._released(sequences, waited)
        # The keys of returned messages are free: messages that waited for it are for others.
        waited.update(queue.dispatcher.drain(consumer))
        back = sorted({*sequences, *waited}) if waited else sequences
        queue.take_back(waited.difference(sequences))
        if not sequences:
            queue.steps.run(back, queue.make_ready, requeues=True)
            released(None)
            return
        errors: list[MalamuteError | None] = []

        def act(some: Sequence[int]) -> None:
            release(some)
            queue.effects.stage.when_stored(errors.append)

        def done() -> None:
            queue.effects.stage.when_stored(lambda error: released(next(filter(None, errors), error)))

        queue.steps.run(back, act, done, requeues=True)

    def _released(
        self, sequences: Sequence[int], waited: Set[int] = frozenset()
    ) -> Callable[[Sequence[int]], None]:
        """Take untouched messages away. Returns the function that requeues some of them.

        The program never had the messages that `waited` for it.
        """
        queue, consumer = self.queue, self.consumer
        sent = {*consumer.sent_of(sequences)}
        queue.detach(consumer, sequences)
        queue.take_back(sequences)

        def release(some: Sequence[int]) -> None:
            for sequence in some:
                if sequence in waited:
                    continue
                entry = queue.entries[sequence]
                if sequence in sent:
                    queue.states.uncount([entry])
                # The message may be stored as delivered, as it was about to be sent.
                queue.watermark.store_attempts(entry)
            queue.make_ready(some)

        return release
