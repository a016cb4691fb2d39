"""The common part of all feeds at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from malamute.core.feed.rule import FeedName, FeedRule
    from malamute.core.feed.target import FeedPlace
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers
    from malamute.core.session.selectors import SelectorBudget
    from malamute.matching import CompiledSelector, Selector
    from malamute.protocol.admin import FeedRow
    from malamute.protocol.names import Place

RETRY_SECONDS = 1.0
"""Seconds for which a feed waits when the disk has refused its messages."""


class FeedOwner(Protocol):
    """All feeds, as far as one of them needs the others."""

    selectors: SelectorBudget
    timers: Timers
    waiting: dict[int, Feed]
    """Feeds that wait for room."""

    def claiming(self, source: Place) -> Iterable[Feed]:
        """The feeds from a source whose messages are not left to its default feed."""

    def report(self, what: str, name: FeedName, **details: Any) -> None:
        """Report an event of a feed."""


class Feed:
    """One rule at work: its selector, its target, and the reasons to wait."""

    cost_bytes = 0
    """The memory of its selector in bytes."""
    compiled: CompiledSelector
    """Its selector, compiled for very many messages."""

    def __init__(
        self, feeds: FeedOwner, name: FeedName, rule: FeedRule, target: FeedPlace, effects: Effects
    ) -> None:
        self.feeds = feeds
        self.name = name
        self.rule = rule
        self.target = target
        self.effects = effects
        self.open = True
        self.resting = False
        """Whether it waits for the outcome of a change."""
        self.full = 0
        """The size of the message that has no room, in bytes, or 0."""
        self.retry_at = 0.0
        self._resume_at: float = 0

    @property
    def free(self) -> bool:
        """Whether nothing of its own keeps it from putting something to its target."""
        return not self.resting and self.rule.active and not self.full and self.effects.now >= self.retry_at

    @property
    def unsettled(self) -> bool:
        """Whether a change has to wait, as the disk may yet refuse its last messages."""
        return False

    @property
    def ready(self) -> bool:
        """Whether it may put something to its target now."""
        raise NotImplementedError

    def unblock(self) -> None:
        """Go on if there is a reason to."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End it."""
        raise NotImplementedError

    def narrow(self, selector: Selector) -> None:
        """Use this selector from now on: that of its rule, or a part of it."""

    def keep(self) -> None:
        """Store how far it has looked, when it has found nothing to take for a while."""

    def row(self) -> FeedRow:
        """Return its rule, state and position, for people."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on after a change."""
        self.resting = False
        self.unblock()

    def _go_by(self, rule: FeedRule, target: FeedPlace) -> None:
        """Go by another rule than before."""
        target.hold()
        self.target.release()
        self.rule, self.target = rule, target
        self.feeds.waiting.pop(id(self), None)
        self.full = 0

    def _let_go(self) -> None:
        """End the feed."""
        self.open = False
        self._cost(0)
        self.target.release()
        self.feeds.waiting.pop(id(self), None)

    def _cost(self, cost_bytes: int) -> None:
        self.feeds.selectors.acquire(cost_bytes - self.cost_bytes)
        self.cost_bytes = cost_bytes

    def _retry(self) -> None:
        self.retry_at = self.effects.now + RETRY_SECONDS
        self.feeds.timers.at(self.retry_at, self.unblock)

    # Room

    def _pass_on(
        self, sizes: Sequence[int], put: Callable[[int, int], None], miss: Callable[[int], None]
    ) -> int:
        """Put messages of these sizes, as many as have room. Returns how many are done with.

        `put` is called with the places of the first one and behind the last, `miss` with that of one which
        can never have room.
        """
        place, target = 0, self.target
        while place < len(sizes):
            room = target.room(sizes[place:]) if self.ready else 0
            if room:
                put(place, place + room)
                place += room
            elif self.ready and target.never_fits(sizes[place]):
                miss(place)
                place += 1
            else:
                if self.ready:
                    self._wait_for_room(sizes[place])
                break
        return place

    def _wait_for_room(self, size_bytes: int) -> None:
        self.full = size_bytes
        self._resume_at = self.target.resume_at(size_bytes)
        self.feeds.waiting[id(self)] = self
        self.feeds.report("full", self.name, messages=self.target.held)

    def wake(self) -> None:
        """Go on if there is room again."""
        has_room = self.target.held <= self._resume_at and self.target.room([self.full]) > 0
        if has_room or self.target.never_fits(self.full):
            self.full = 0
            del self.feeds.waiting[id(self)]
            self.feeds.report("resumed", self.name)
            self.unblock()
