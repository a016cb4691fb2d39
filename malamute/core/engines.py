"""What the broker consists of, as its operators' queries and changes see it."""

from __future__ import annotations

from collections.abc import Mapping

from malamute.core.access import AccessControl
from malamute.core.accounts import AccountDirectory
from malamute.core.answers import Answers
from malamute.core.audit import Audit
from malamute.core.effects import Effects
from malamute.core.feed.table import Feeds
from malamute.core.grace_period import ClockNote
from malamute.core.groups import GroupDirectory
from malamute.core.health import Health
from malamute.core.mailbox import Mailboxes
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.table import QueueTable
from malamute.core.quotas import QuotaTable
from malamute.core.recovery import Recovery
from malamute.core.refusal_reports import RefusalReports
from malamute.core.selector_numbers import SelectorNumbers
from malamute.core.selectors import SelectorBudget
from malamute.core.service import Services
from malamute.core.session import Sessions
from malamute.core.settings import Settings
from malamute.core.stores import NamedStore
from malamute.core.stream.stream import Streams
from malamute.core.timers import Timers


class Engines:
    """The parts of the broker. `Core` makes them and calls them; `admin` reads and changes them."""

    settings: Settings
    access: AccessControl
    accounts: AccountDirectory
    groups: GroupDirectory
    quotas: QuotaTable
    audit: Audit
    effects: Effects
    timers: Timers
    clock_note: ClockNote
    answers: Answers
    selectors: SelectorBudget
    streams: Streams
    health: Health
    stores: Mapping[str, NamedStore]
    """Those that have names."""
    queue_limits: QueueLimits
    mailboxes: Mailboxes
    services: Services
    sessions: Sessions
    recovery: Recovery
    feeds: Feeds
    refusals: RefusalReports
    selector_numbers: SelectorNumbers

    started: float
    configured_at: float
    waiting_options: tuple[str, ...] = ()
    """Options of the configuration that was loaded last, which wait for the next start."""
    config_error = ""
    """Why the configuration that was to be loaded last was refused."""

    def queues_of(self, kind: str) -> QueueTable:
        """The mailboxes or the services."""
        return self.mailboxes if kind == "mailbox" else self.services
