"""The engines of the broker, as queries and changes of operators see them."""

from __future__ import annotations

from malamute.core.bucket.table import Buckets
from malamute.core.feed.table import Feeds
from malamute.core.identity.access import AccessControl
from malamute.core.identity.accounts import AccountDirectory
from malamute.core.identity.groups import GroupDirectory
from malamute.core.identity.quotas import QuotaTable
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.grace_period import ClockNote
from malamute.core.iteration.health import Health
from malamute.core.iteration.recovery import Recovery
from malamute.core.iteration.settings import ConfigurationInForce
from malamute.core.iteration.timers import Timers
from malamute.core.link.table import Links
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.mailbox import Mailboxes
from malamute.core.queue.service import Services
from malamute.core.queue.table import QueueTables
from malamute.core.reports.audit import Audit
from malamute.core.reports.refusal_reports import RefusalReports
from malamute.core.review import Review
from malamute.core.selector_numbers import SelectorNumbers
from malamute.core.session.answers import Answers
from malamute.core.session.selectors import SelectorBudget
from malamute.core.session.sessions import Sessions
from malamute.core.sources import Sources
from malamute.core.stream.message_deletion import MessageDeletions
from malamute.core.stream.table import Streams


class Engines:
    """The parts of the broker. `Core` makes them and calls them; `admin` reads and changes them."""

    configuration: ConfigurationInForce
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
    deletions: MessageDeletions
    health: Health
    old_key_connections: int
    queue_limits: QueueLimits
    mailboxes: Mailboxes
    services: Services
    queues: QueueTables
    """The mailboxes and the services, by kind."""
    buckets: Buckets
    sessions: Sessions
    sources: Sources
    review: Review
    recovery: Recovery
    feeds: Feeds
    links: Links
    refusals: RefusalReports
    selector_numbers: SelectorNumbers

    started: float
