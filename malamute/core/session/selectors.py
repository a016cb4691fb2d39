"""The memory of selectors, and its limits.

A few hundred bytes of an expression may stand for thousands of terms in an index. So the memory of a selector
is computed from its form before it is filed (`Selector.cost_bytes`), and there is a limit for each, for all
of a session, and for all of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.identity.quotas import add_all, check_all
from malamute.errors import InvalidSelector, TooMany

if TYPE_CHECKING:
    from malamute.core.session.session import Session
    from malamute.matching import Selector
    from malamute.protocol.limits import Limits


SUBSCRIPTION_BYTES, OFFER_BYTES = 1_536, 4_608
"""Bytes of a subscription or an offer beside its selector."""


class SelectorBudget:
    """The memory of all selectors in use, with their subscriptions and offers, in bytes."""

    def __init__(self, limits: Limits) -> None:
        self.used_bytes = 0
        self.reserved_bytes = 0
        """The memory of selectors that are in use once they are durable."""
        self.limits = limits

    def check(self, selector: Selector, session: Session | None = None, beside: int = 0) -> int:
        """Return the cost of a selector and its subscription or offer.

        Raises:
            InvalidSelector: the selector is too large for any session. TooMany: there is no room for it.
            QuotaExceeded: nor has the session's user any.
        """
        cost, limits = selector.cost_bytes, self.limits
        if cost > limits.selector_bytes:
            raise InvalidSelector(
                f"selector of {cost} bytes of memory is too large: expected at most {limits.selector_bytes};"
                " ask for less, or in several subscriptions"
            )
        return self.check_cost(cost + beside, session)

    def check_cost(self, cost: int, session: Session | None = None) -> int:
        """Return the cost of a source in bytes. Raises `TooMany` or `QuotaExceeded` without room for it."""
        limits = self.limits
        if session is not None and session.selector_bytes + cost > limits.session_selector_bytes:
            raise TooMany(
                f"selectors of this session are too large: {session.selector_bytes} bytes of memory, "
                f"and {cost} more; expected at most {limits.session_selector_bytes}"
            )
        if session is not None and session.quotas:
            check_all(session.quotas, "sources", 1)
            check_all(session.quotas, "selector_bytes", cost)
        taken = self.used_bytes + self.reserved_bytes
        if taken + cost > limits.selectors_bytes:
            raise TooMany(
                f"selectors of all sessions are too large: {taken} bytes of memory, "
                f"and {cost} more; expected at most {limits.selectors_bytes}"
            )
        return cost

    def acquire(self, cost: int, session: Session | None = None) -> None:
        """A selector is in use, or no longer if negative."""
        self.used_bytes += cost
        if session is not None:
            count = (cost > 0) - (cost < 0)
            session.selectors += count
            session.selector_bytes += cost
            if session.quotas:
                add_all(session.quotas, "sources", count)
                add_all(session.quotas, "selector_bytes", cost)
