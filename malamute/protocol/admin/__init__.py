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

A new topic is a class in the module of its subject: importers find all of them in this package.
"""

from collections.abc import Mapping
from typing import Any

from malamute.protocol.admin.access import *
from malamute.protocol.admin.broker import *
from malamute.protocol.admin.buckets import *
from malamute.protocol.admin.clients import *
from malamute.protocol.admin.cursors import *
from malamute.protocol.admin.feeds import *
from malamute.protocol.admin.groups import *
from malamute.protocol.admin.links import *
from malamute.protocol.admin.messages import *
from malamute.protocol.admin.queues import *
from malamute.protocol.admin.quotas import *
from malamute.protocol.admin.selectors import *
from malamute.protocol.admin.store import *
from malamute.protocol.admin.streams import *
from malamute.protocol.admin.topic import *
from malamute.protocol.admin.users import *
from malamute.protocol.admin.value import *


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
