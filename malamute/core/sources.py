"""The end of sources: subscriptions, offers and mailboxes of sessions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from malamute.core.bucket.watch import Watching
from malamute.core.queue.source import QueueSource
from malamute.core.reports.events import report_worker
from malamute.core.stream.subscription import Subscription
from malamute.protocol.messages import BY_TYPE, Offer, Subscribe, Watch, error_message

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers
    from malamute.core.queue.mailbox import Mailboxes
    from malamute.core.session.selectors import SelectorBudget
    from malamute.core.session.session import Session, SessionSource
    from malamute.core.stream.table import Streams
    from malamute.errors import MalamuteError


class Sources:
    """The sources of all sessions, as far as they end."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        selectors: SelectorBudget,
        streams: Streams,
        mailboxes: Mailboxes,
    ) -> None:
        self._effects = effects
        self._timers = timers
        self._selectors = selectors
        self._streams = streams
        self._mailboxes = mailboxes

    def end(self, session: Session, source: SessionSource, *, lost: bool = False) -> None:
        """End a source of a session: nothing of the broker refers to it then.

        A source that is `lost` with its connection may be opened again by the session.
        """
        if isinstance(source, QueueSource):
            report_worker("left", source)
        self._selectors.acquire(-source.cost_bytes, session)
        source.cancel()
        if isinstance(source, Subscription):
            self._streams.left(source)
        elif isinstance(source, QueueSource) and source.queue.users is not None:
            self._mailboxes.left(source.queue, session, lost=lost)

    def dismiss(self, session: Session, number: int, error: MalamuteError) -> None:
        """End a subscription or an offer that its client has not ended, and send the client the reason."""
        source = session.sources.pop(number)
        self.end(session, source)
        command = _COMMANDS.get(type(source), Offer)
        self._effects.refuse(session.peer, error_message(error, BY_TYPE[command].opcode, number))

    def take_back(self, session: Session) -> None:
        """Take back all that belongs to a connection."""
        self._timers.cancel(session.expiry)
        session.expiry = None
        sources = list(session.sources.values())
        session.sources.clear()
        for source in sources:
            end = partial(self.end, session, source, lost=not session.ending)
            self._effects.guard("the end of a source", end)


_COMMANDS: dict[type[Any], type[Any]] = {Subscription: Subscribe, Watching: Watch}
"""The commands that begin sources, by the type of the source; of all others it is OFFER."""
