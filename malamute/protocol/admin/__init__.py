"""Queries and changes of operators with their answers, as values: the topics of QUERY and CHANGE.

A query or a change is a value whose fields are the arguments of its topic. The answer is a `Row`, or a list
of rows. On the wire both are maps by the names of the fields, and `encode` and `decode` convert them. A field
that has its default may be left out of a map, and further keys of a map are ignored.

Times of day are in seconds since the epoch, durations have their unit in their names, sizes are in bytes.
Credit is the remaining one, -1 without limit.

    value       values with named fields, rows, and their maps
    topic       the base classes of queries and changes
    broker, store, buckets, streams, cursors, feeds, links, queues, messages, clients, users, groups, access,
                quotas
                the queries, the changes and the rows of each subject

A new topic is a class in the module of its subject, and a line here: importers find all of them in this
package.
"""

from collections.abc import Mapping
from typing import Any

from malamute.protocol.admin.access import AccessExplained as AccessExplained
from malamute.protocol.admin.access import AccessQuery as AccessQuery
from malamute.protocol.admin.broker import BrokerMetrics as BrokerMetrics
from malamute.protocol.admin.broker import BrokerOption as BrokerOption
from malamute.protocol.admin.broker import BrokerReload as BrokerReload
from malamute.protocol.admin.broker import BrokerReloaded as BrokerReloaded
from malamute.protocol.admin.broker import BrokerStatus as BrokerStatus
from malamute.protocol.admin.broker import BrokerTotals as BrokerTotals
from malamute.protocol.admin.broker import DurationTotals as DurationTotals
from malamute.protocol.admin.broker import LimitUsage as LimitUsage
from malamute.protocol.admin.broker import MetricsQuery as MetricsQuery
from malamute.protocol.admin.broker import OptionsQuery as OptionsQuery
from malamute.protocol.admin.broker import QueueTotals as QueueTotals
from malamute.protocol.admin.broker import ReaderTotals as ReaderTotals
from malamute.protocol.admin.broker import StatusQuery as StatusQuery
from malamute.protocol.admin.broker import TotalsQuery as TotalsQuery
from malamute.protocol.admin.buckets import BucketRow as BucketRow
from malamute.protocol.admin.buckets import BucketsQuery as BucketsQuery
from malamute.protocol.admin.clients import ClientDetails as ClientDetails
from malamute.protocol.admin.clients import ClientDisconnect as ClientDisconnect
from malamute.protocol.admin.clients import ClientDisconnected as ClientDisconnected
from malamute.protocol.admin.clients import ClientQuery as ClientQuery
from malamute.protocol.admin.clients import ClientRow as ClientRow
from malamute.protocol.admin.clients import ClientsQuery as ClientsQuery
from malamute.protocol.admin.clients import MailboxReader as MailboxReader
from malamute.protocol.admin.clients import OfferRow as OfferRow
from malamute.protocol.admin.clients import SubscriptionRow as SubscriptionRow
from malamute.protocol.admin.cursors import CursorChanged as CursorChanged
from malamute.protocol.admin.cursors import CursorDelete as CursorDelete
from malamute.protocol.admin.cursors import CursorDeleted as CursorDeleted
from malamute.protocol.admin.cursors import CursorRow as CursorRow
from malamute.protocol.admin.cursors import CursorSet as CursorSet
from malamute.protocol.admin.cursors import CursorsQuery as CursorsQuery
from malamute.protocol.admin.cursors import StreamCursor as StreamCursor
from malamute.protocol.admin.feeds import FEED_CHANGES as FEED_CHANGES
from malamute.protocol.admin.feeds import FeedChanged as FeedChanged
from malamute.protocol.admin.feeds import FeedDelete as FeedDelete
from malamute.protocol.admin.feeds import FeedDeleted as FeedDeleted
from malamute.protocol.admin.feeds import FeedDisable as FeedDisable
from malamute.protocol.admin.feeds import FeedEnable as FeedEnable
from malamute.protocol.admin.feeds import FeedQuery as FeedQuery
from malamute.protocol.admin.feeds import FeedRow as FeedRow
from malamute.protocol.admin.feeds import FeedSet as FeedSet
from malamute.protocol.admin.feeds import FeedsQuery as FeedsQuery
from malamute.protocol.admin.feeds import FeedSwitched as FeedSwitched
from malamute.protocol.admin.groups import GroupAdd as GroupAdd
from malamute.protocol.admin.groups import GroupRemove as GroupRemove
from malamute.protocol.admin.groups import GroupRemoved as GroupRemoved
from malamute.protocol.admin.groups import GroupRow as GroupRow
from malamute.protocol.admin.groups import GroupSet as GroupSet
from malamute.protocol.admin.groups import GroupsQuery as GroupsQuery
from malamute.protocol.admin.links import LINK_CHANGES as LINK_CHANGES
from malamute.protocol.admin.links import LinkAdvance as LinkAdvance
from malamute.protocol.admin.links import LinkChanged as LinkChanged
from malamute.protocol.admin.links import LinkOrigin as LinkOrigin
from malamute.protocol.admin.links import LinkOriginQuery as LinkOriginQuery
from malamute.protocol.admin.links import LinkPause as LinkPause
from malamute.protocol.admin.links import LinkQuery as LinkQuery
from malamute.protocol.admin.links import LinkRemove as LinkRemove
from malamute.protocol.admin.links import LinkReport as LinkReport
from malamute.protocol.admin.links import LinkResume as LinkResume
from malamute.protocol.admin.links import LinkRow as LinkRow
from malamute.protocol.admin.links import LinkSet as LinkSet
from malamute.protocol.admin.links import LinksQuery as LinksQuery
from malamute.protocol.admin.links import LinkStop as LinkStop
from malamute.protocol.admin.links import LinkVerdict as LinkVerdict
from malamute.protocol.admin.links import Way as Way
from malamute.protocol.admin.messages import MESSAGE_ROWS as MESSAGE_ROWS
from malamute.protocol.admin.messages import MessageQuery as MessageQuery
from malamute.protocol.admin.messages import MessageRow as MessageRow
from malamute.protocol.admin.messages import MessagesQuery as MessagesQuery
from malamute.protocol.admin.queues import MailboxesQuery as MailboxesQuery
from malamute.protocol.admin.queues import MailboxQuery as MailboxQuery
from malamute.protocol.admin.queues import QueueChanged as QueueChanged
from malamute.protocol.admin.queues import QueueDelete as QueueDelete
from malamute.protocol.admin.queues import QueueDeleted as QueueDeleted
from malamute.protocol.admin.queues import QueuePurge as QueuePurge
from malamute.protocol.admin.queues import QueueRedrive as QueueRedrive
from malamute.protocol.admin.queues import QueueRow as QueueRow
from malamute.protocol.admin.queues import QueueSet as QueueSet
from malamute.protocol.admin.queues import QueueSettingsRow as QueueSettingsRow
from malamute.protocol.admin.queues import ServiceDetails as ServiceDetails
from malamute.protocol.admin.queues import ServiceQuery as ServiceQuery
from malamute.protocol.admin.queues import ServicesQuery as ServicesQuery
from malamute.protocol.admin.queues import WorkerRow as WorkerRow
from malamute.protocol.admin.quotas import QuotaFigure as QuotaFigure
from malamute.protocol.admin.quotas import QuotaRow as QuotaRow
from malamute.protocol.admin.quotas import QuotasQuery as QuotasQuery
from malamute.protocol.admin.selectors import SelectorQuery as SelectorQuery
from malamute.protocol.admin.selectors import SelectorRow as SelectorRow
from malamute.protocol.admin.selectors import SelectorsQuery as SelectorsQuery
from malamute.protocol.admin.store import BackupMade as BackupMade
from malamute.protocol.admin.store import JournalBackup as JournalBackup
from malamute.protocol.admin.store import StorageQuery as StorageQuery
from malamute.protocol.admin.store import StoreDamage as StoreDamage
from malamute.protocol.admin.store import StoredQuery as StoredQuery
from malamute.protocol.admin.store import StoredStream as StoredStream
from malamute.protocol.admin.store import StoreUsage as StoreUsage
from malamute.protocol.admin.streams import DemandQuery as DemandQuery
from malamute.protocol.admin.streams import ExplainedSelector as ExplainedSelector
from malamute.protocol.admin.streams import ExplainQuery as ExplainQuery
from malamute.protocol.admin.streams import FamilyFailures as FamilyFailures
from malamute.protocol.admin.streams import ReaderRow as ReaderRow
from malamute.protocol.admin.streams import StreamCreate as StreamCreate
from malamute.protocol.admin.streams import StreamDelete as StreamDelete
from malamute.protocol.admin.streams import StreamDeleted as StreamDeleted
from malamute.protocol.admin.streams import StreamDeleteMessages as StreamDeleteMessages
from malamute.protocol.admin.streams import StreamDemand as StreamDemand
from malamute.protocol.admin.streams import StreamDetails as StreamDetails
from malamute.protocol.admin.streams import StreamKept as StreamKept
from malamute.protocol.admin.streams import StreamMessagesDeleted as StreamMessagesDeleted
from malamute.protocol.admin.streams import StreamPurge as StreamPurge
from malamute.protocol.admin.streams import StreamPurged as StreamPurged
from malamute.protocol.admin.streams import StreamQuery as StreamQuery
from malamute.protocol.admin.streams import StreamRetain as StreamRetain
from malamute.protocol.admin.streams import StreamRow as StreamRow
from malamute.protocol.admin.streams import StreamsQuery as StreamsQuery
from malamute.protocol.admin.topic import AdminChange as AdminChange
from malamute.protocol.admin.topic import AdminQuery as AdminQuery
from malamute.protocol.admin.topic import AdminTopic as AdminTopic
from malamute.protocol.admin.topic import PagedQuery as PagedQuery
from malamute.protocol.admin.users import UserAdd as UserAdd
from malamute.protocol.admin.users import UserRemove as UserRemove
from malamute.protocol.admin.users import UserRemoved as UserRemoved
from malamute.protocol.admin.users import UserRow as UserRow
from malamute.protocol.admin.users import UserSet as UserSet
from malamute.protocol.admin.users import UsersQuery as UsersQuery
from malamute.protocol.admin.value import Row as Row
from malamute.protocol.admin.value import Value as Value
from malamute.protocol.admin.value import decode as decode
from malamute.protocol.admin.value import encode as encode


def _by_topic(kind: type[Any]) -> dict[str, type[Any]]:
    """All types of a kind that have a topic, in an order that does not depend on that of the imports."""
    every = [*kind.__subclasses__()]
    for one in every:
        every += one.__subclasses__()
    found = {one.topic: one for one in every if hasattr(one, "topic")}
    return {topic: found[topic] for topic in sorted(found)}


QUERIES: Mapping[str, type[AdminQuery[Any]]] = _by_topic(AdminQuery)
"""The queries by their topics."""

CHANGES: Mapping[str, type[AdminChange[Any]]] = _by_topic(AdminChange)
"""The changes by their topics."""
