"""The start: the order in which the engines restore their stored state, and the reports of it.

Each engine restores its own part of `Recovered`, by its `restore(recovered, recovery)`. The engine alone
knows its tables in the store and their values; here is nothing but the order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from malamute.core.identity.groups import STORED_GROUPS_MAX
from malamute.protocol.time_units import to_seconds
from malamute.store.operations import Recovered

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.mailbox import Mailboxes
    from malamute.core.session.sessions import Sessions

RESTORED_WORDS = "the store was restored: sequences begin far beyond all that may have been used"

CLOCK_BEHIND_MAX, CLOCK_AHEAD_MAX = 1.0, 86_400.0
"""Seconds that the clock may differ from the last stored time at the start without a report."""


def restore(core: Engines, recovered: Recovered) -> None:
    """Have each engine restore its stored state. An engine that needs others comes after them."""
    recovery = core.recovery
    # The grace period needs the newest messages of all queues, which these take out of `recovered`.
    core.clock_note.restore(recovered, recovery)
    core.accounts.restore(recovered, recovery)
    core.groups.restore(recovered, recovery)
    core.streams.restore(recovered, recovery)
    core.deletions.restore(recovered, recovery)
    core.queue_limits.restore(recovered, recovery)
    core.buckets.restore(recovered, recovery)
    core.mailboxes.restore(recovered, recovery)
    core.services.restore(recovered, recovery)
    core.sessions.restore(recovered, recovery)
    # Which of them are anonymous is not known; the others have no request under this name.
    core.services.await_replies({session.mailbox for session in core.sessions.by_peer.values()})
    core.mailboxes.resume(recovery)
    core.services.resume(recovery)
    core.feeds.restore(recovered, recovery)
    core.links.restore(recovered, recovery)
    _report_excess(core)
    if core.mailboxes.strays(core.sessions.by_peer.values()):
        # A client may still return within the time of a session, and finds its mail.
        core.timers.at(
            core.effects.now + core.configuration.settings.session_expiry,
            partial(_remove_strays, core.mailboxes, core.sessions),
        )


def _report_excess(core: Engines) -> None:
    """Report skipped things, and those above a limit."""
    limits, streams = core.configuration.settings.limits, core.streams.by_name
    cursors = max((len(stream.cursors) for stream in streams.values()), default=0)
    core.recovery.report(
        {
            "streams": (len(streams), limits.streams),
            "cursors of a stream": (cursors, limits.cursors),
            "sessions": (len(core.sessions.by_peer), limits.sessions),
            "mailboxes and services": (core.queue_limits.queues, limits.queues),
            "queued messages": (core.queue_limits.messages, limits.queues_messages),
            "bytes of queued messages": (core.queue_limits.bytes, limits.queues_bytes),
            "feeds": (len(core.feeds.by_name), limits.feeds),
            "buckets": (len(core.buckets.by_name), limits.buckets),
            "bytes of keys in buckets": (core.buckets.usage.bytes, limits.buckets_bytes),
            "stored accounts": (len(core.accounts.stored.by_name), limits.accounts),
            "stored groups": (len(core.groups.stored), STORED_GROUPS_MAX),
        }
    )


def _remove_strays(mailboxes: Mailboxes, sessions: Sessions) -> None:
    """Remove the private mailboxes of sessions that the store has lost."""
    for mailbox in mailboxes.strays(sessions.by_peer.values()):
        mailboxes.remove(mailbox)


def report(core: Engines, recovered: Recovered) -> None:
    """Report the start, and its findings, once events can be published."""
    core.health.damaged(recovered.defects)
    settings, effects = core.configuration.settings, core.effects
    effects.event("broker.started", software=settings.software, pid=settings.facts.get("pid"))
    core.mailboxes.report_lost(recovered)
    core.services.report_lost(recovered)
    if recovered.restored:
        effects.notice(RESTORED_WORDS, incarnation=recovered.incarnation)
        effects.event("broker.restored", incarnation=recovered.incarnation)
    _report_clock(effects, core.clock_note.last)


def _report_clock(effects: Effects, last: int) -> None:
    """Report if the clock is not where it was when something was `last` stored: it is or was wrong."""
    seconds = effects.now - to_seconds(last)
    if last and not -CLOCK_BEHIND_MAX <= seconds <= CLOCK_AHEAD_MAX:
        what = "behind" if seconds < 0 else "ahead"
        effects.notice(f"the clock is {what} since something was stored last", seconds=abs(seconds))
        effects.event(f"clock.{what}", seconds=abs(seconds))
