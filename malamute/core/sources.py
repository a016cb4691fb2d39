"""The end of what sessions have under a number: subscriptions, offers and their mailboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.queue.source import QueueSource
from malamute.core.reports.events import report_worker
from malamute.core.stream.subscription import Subscription
from malamute.protocol.messages import BY_TYPE, Offer, Subscribe, error_message

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.session.session import Session, SessionSource
    from malamute.errors import MalamuteError


def end_source(core: Engines, session: Session, source: SessionSource) -> None:
    """End what a session had: nothing of the broker refers to it then."""
    if isinstance(source, QueueSource):
        report_worker("left", source)
    core.selectors.acquire(-source.cost_bytes, session)
    source.cancel()
    if isinstance(source, Subscription):
        core.streams.left(source)


def dismiss_source(core: Engines, session: Session, number: int, error: MalamuteError) -> None:
    """End a subscription or an offer that its client has not ended, and send the client the reason."""
    source = session.sources.pop(number)
    end_source(core, session, source)
    command = Subscribe if isinstance(source, Subscription) else Offer
    core.effects.refuse(session.peer, error_message(error, BY_TYPE[command].opcode, number))


def take_back(core: Engines, session: Session) -> None:
    """Take back all that belongs to a connection."""
    core.timers.cancel(session.expiry)
    session.expiry = None
    sources = list(session.sources.values())
    session.sources.clear()
    for source in sources:
        core.effects.guard("the end of a source", end_source, core, session, source)
