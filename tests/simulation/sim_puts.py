"""What puts messages into queues, one message at a time: the books are kept by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from malamute.store.commit import Append
from malamute.store.operations import Operation, PutMessages, QueueKind, StoredMessage


class PutMessage(NamedTuple):
    """One of the messages of an operation."""

    kind: QueueKind
    queue: str
    message: StoredMessage


class Puts:
    """The messages of the operations that are under way: the same ones each time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[PutMessages, list[PutMessage]]] = {}

    def single(self, operations: Sequence[Operation]) -> list[Any]:
        """Operations with one message each."""
        return [one for operation in operations for one in self._each(operation)]

    def of(self, append: Append) -> Append:
        """What an append is to do, with one message each."""
        return append._replace(operations=self.single(append.operations))

    def _each(self, operation: Operation) -> Sequence[Any]:
        if not isinstance(operation, PutMessages):
            return (operation,)
        known = self._known.get(id(operation))
        if known is None:
            puts = [PutMessage(operation.kind, operation.queue, one) for one in operation.messages()]
            known = self._known[id(operation)] = operation, puts
        return known[1]

    def forget(self, operations: Sequence[Operation]) -> None:
        """These are done."""
        for operation in operations:
            self._known.pop(id(operation), None)
