"""The operations that one iteration stores, and who waits until they are durable.

All operations of an iteration are one `Append`, which the writer commits as a whole. Since
every confirmation is made by a callback of `when_stored`, "no confirmation before it is durable" lives in
this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malamute.core.iteration.metrics import DurationTotal
from malamute.errors import MalamuteError
from malamute.store.commit import Append
from malamute.store.operations import Operation

WhenStored = Callable[[MalamuteError | None], None]


class BacklogShare:
    """The part of one sender in the write backlog: messages that wait for the disk."""

    backlog_bytes = 0
    new_bytes = 0
    """The messages of this iteration."""


_Unsettled = tuple[list[WhenStored], int, Sequence[tuple[BacklogShare, int]], float | None]
"""Of an append that was handed over: the callbacks, its bytes, the senders whose shares of the backlog it
takes, and the time since when a client waits for it."""


class StoreStage:
    """The operations of the iteration under way, and those before it of which the outcome is not known."""

    def __init__(self, fault: Callable[[str, Exception], object]) -> None:
        """`fault` counts and reports an exception that nobody expected."""
        self._fault = fault
        self.operations: list[Operation] = []
        self.bound: list[Operation] = []
        self.backlog_bytes = 0
        self.backlog_shares: list[BacklogShare] = []
        """The sessions whose messages this iteration stores, for which these count until the outcome is
        known."""
        self.commits = DurationTotal()
        """From when something was handed over that somebody waits for, to when it was durable."""
        self.committed_bytes = 0
        self._callbacks: list[WhenStored] = []
        self._awaited = False
        self._bytes = 0
        self._token = 0
        self._known = 0
        self._needs: set[int] = set()
        self._waiting: dict[int, _Unsettled] = {}

    def store(self, *operations: Operation, size_bytes: int = 0) -> None:
        """Store something with all else of this iteration. `size_bytes` counts towards the backlog."""
        self.operations += operations
        self._bytes += size_bytes
        self.backlog_bytes += size_bytes

    def store_bound(self, operation: Operation) -> None:
        """Store something that is to be done with all else of this iteration, or not at all."""
        self.operations.append(operation)
        self.bound.append(operation)

    def rely_on(self, token: int) -> bool:
        """Store this iteration only if append `token` is stored. Returns False if its outcome is known."""
        if token in self._waiting:
            self._needs.add(token)
        return token in self._waiting or token == self.token

    def when_stored(self, callback: WhenStored, *, awaited: bool = True) -> None:
        """Call back when all of this iteration is durable, or with the error that kept it from being so.

        `awaited` tells whether anybody waits for that.
        """
        self._callbacks.append(callback)
        self._awaited |= awaited

    def hurry(self) -> None:
        """Note that a client waits for the commit of this iteration, besides the callbacks."""
        self._awaited = True

    def settle(self, token: int, error: MalamuteError | None, now: float) -> None:
        """Learn that the operations of `token` are durable, or failed as a whole with `error`."""
        callbacks, size_bytes, backlog_shares, since = self._waiting.pop(token)
        self._known = token
        if error is None:
            self.committed_bytes += size_bytes
            if since is not None:
                self.commits.add(now - since, now)
        self.backlog_bytes -= size_bytes
        if backlog_shares:
            _let_go(backlog_shares)
        for callback in callbacks:
            try:
                callback(error)
            except Exception as fault:
                self._fault("what waited for the store", fault)

    def hand_over(self, fault: MalamuteError | None, now: float) -> Sequence[Append]:
        """Return the append of this iteration; with a `fault` it is to be refused."""
        backlog_shares: Sequence[tuple[BacklogShare, int]] = ()
        is_empty = not (self.operations or self._callbacks)
        if self.backlog_shares:
            if not is_empty:
                backlog_shares = [(holder, holder.new_bytes) for holder in self.backlog_shares]
            for holder in self.backlog_shares:
                if is_empty:
                    holder.backlog_bytes -= holder.new_bytes
                holder.new_bytes = 0
            self.backlog_shares.clear()
        if is_empty:
            self._awaited = False
            return ()
        self._token += 1
        since = now if self._awaited else None
        self._waiting[self._token] = (self._callbacks, self._bytes, backlog_shares, since)
        append = Append(
            self._token,
            self.operations,
            self.bound,
            self._known,
            self._awaited or fault is not None,
            frozenset(self._needs),
            fault,
        )
        self._needs.clear()
        self._awaited = False
        self.operations, self.bound, self._callbacks, self._bytes = [], [], [], 0
        return (append,)

    @property
    def token(self) -> int:
        """The token that the append of this iteration will have."""
        return self._token + 1

    @property
    def unsettled(self) -> bool:
        """Whether anything handed to the writer has not been answered yet."""
        return bool(self._waiting)


def _let_go(backlog_shares: Sequence[tuple[BacklogShare, int]]) -> None:
    for holder, size_bytes in backlog_shares:
        holder.backlog_bytes -= size_bytes
