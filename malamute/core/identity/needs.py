"""The needs of commands: for each, the actions that it takes, and the resources that it takes them on.

`ACCESS` stands beside the table of states (`commands.STATES`): for every command of an open session it says
the action, the kind of resource, and the field with its name. Commands about deliveries or a source need
nothing more than the allowed SUBSCRIBE, OFFER or HELLO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from malamute.protocol import messages as wire


class Access(NamedTuple):
    """The action of a command on a resource, and the fields of its name and subjects.

    The kind is one of `access.KINDS`, or `cursor` or `topic`. If it is empty, the command says in its own
    field `kind` which it is; if it is `PLACE`, the field names a place. The action `CONSUME` is the one for
    the kind. An action that is none of `access.ACTIONS` needs no rule. The subjects are `WHOLE` if it needs
    the whole of the resource: every subject, and every row. Of a stream any part will do: reading is narrowed
    to it.
    """

    action: str
    kind: str
    field: str
    subjects: str = ""


WHOLE = "*"

PLACE = "place"

CONSUME = "consume"

_CONSUMING = {"stream": "subscribe", "mailbox": "receive", "service": "offer"}
"""The action of consuming messages, by the kind of their queue."""

_OWN: tuple[Access, ...] = ()
"""Of the session itself, or of sources that it was allowed to have."""

ACCESS: dict[type[Any], tuple[Access, ...]] = {
    wire.Hello: (Access("receive", "mailbox", "address"),),
    wire.Publish: (Access("publish", "stream", "stream", "subjects"),),
    wire.Forward: (Access("link", "stream", "stream", "subjects"),),
    wire.Send: (Access("send", "mailbox", "address", "subjects"),),
    wire.Request: (Access("request", "service", "service", "subjects"),),
    wire.Reply: _OWN,
    wire.Subscribe: (Access("subscribe", "stream", "stream"), Access("commit", "cursor", "cursor")),
    wire.Offer: (Access(CONSUME, "", "service"),),
    wire.Cancel: _OWN,
    wire.Credit: _OWN,
    wire.Ack: _OWN,
    wire.Nak: _OWN,
    wire.Reject: _OWN,
    wire.Progress: _OWN,
    wire.Release: _OWN,
    wire.Drain: _OWN,
    wire.Withdraw: (Access("withdraw", "", "name"),),
    wire.Query: (Access("query", "topic", "topic"),),
    wire.Ping: _OWN,
    wire.Received: _OWN,
    wire.Bye: _OWN,
    wire.Commit: (Access("subscribe", "stream", "stream"), Access("commit", "cursor", "cursor")),
    wire.Change: (Access("change", "topic", "topic"),),
    wire.Get: (Access("read", "bucket", "bucket"),),
    wire.Put: (Access("write", "bucket", "bucket"),),
    wire.Delete: (Access("write", "bucket", "bucket"),),
    wire.Add: (Access("write", "bucket", "bucket"),),
    wire.Watch: (Access("read", "bucket", "bucket"),),
}
"""The need of each command of an open session."""

_CURSOR = (Access("subscribe", "stream", "stream"), Access("commit", "cursor", "cursor"))
_STREAM = (Access("admin", "stream", "stream"),)
_OF_FEED = (Access("admin", PLACE, "source"),)
_FEED = (
    Access("admin", PLACE, "target"),
    *_OF_FEED,
    # The command reads for no principal.
    Access(CONSUME, PLACE, "source", WHOLE),
)
_LINK = (Access("admin", "stream", "stream"), Access("link", "stream", "stream"))
_OF_RUNNER = (Access("link", "stream", "stream"),)
_QUEUE = (Access("admin", "", "name"),)
_USER = (Access("admin", "user", "name"),)
_GROUP = (Access("admin", "group", "name"),)

CHANGES: dict[str, tuple[Access, ...]] = {
    "cursor.set": _CURSOR,
    "cursor.delete": _CURSOR,
    # Who may administer it may create it, too; the limits of its retention need that right.
    "stream.create": (Access("create", "stream", "stream"),),
    "stream.retain": _STREAM,
    "stream.purge": _STREAM,
    "stream.delete": _STREAM,
    "stream.delete-messages": _STREAM,
    "feed.set": _FEED,
    "feed.enable": _OF_FEED,
    "feed.disable": _OF_FEED,
    "feed.delete": _OF_FEED,
    "link.set": _LINK,
    "link.pause": _LINK[:1],
    "link.resume": _LINK,
    "link.advance": _OF_RUNNER,
    "link.stop": _OF_RUNNER,
    "link.remove": _LINK[:1],
    "queue.redrive": _QUEUE,
    "queue.set": _QUEUE,
    "queue.purge": _QUEUE,
    "queue.delete": _QUEUE,
    "broker.reload": (),
    "client.disconnect": (Access("admin", "client", "id"),),
    "user.add": _USER,
    "user.set": _USER,
    "user.remove": _USER,
    "group.add": _GROUP,
    "group.set": _GROUP,
    "group.remove": _GROUP,
    "journal.backup": (),
}
"""The need of each topic of CHANGE; the fields are its arguments. Without a name, it is the broker's."""

QUERIES: dict[str, tuple[Access, ...]] = {
    "status": (),
    "streams": (),
    "mailboxes": (),
    "services": (),
    "clients": (),
    "feeds": (),
    "links": (),
    "link": (),
    "users": (),
    "groups": (),
    "options": (),
    "storage": (),
    "totals": (),
    "metrics": (),
    "access": (),
    "quotas": (),
    "buckets": (),
    "stored": (Access("view", "stream", "stream"),),
    "cursors": (Access("view", "stream", "stream"),),
    "stream": (Access("view", "stream", "name"),),
    "explain": (Access("view", "stream", "stream"),),
    "demand": (Access("publish", "stream", "stream"),),
    "link.origin": (Access("subscribe", "stream", "stream"),),
    "link.report": _OF_RUNNER,
    "feed": (Access("view", PLACE, "source"),),
    "selectors": (Access("view", PLACE, "source"),),
    "selector": (Access("view", PLACE, "source"),),
    "mailbox": (Access("view", "mailbox", "name"),),
    "service": (Access("view", "service", "name"),),
    "client": (Access("view", "client", "id"),),
    "messages": (Access("browse", "", "name"),),
    "message": (Access("browse", "", "name"),),
}
"""The same of each topic of QUERY. A list is the broker's: it has the names of all that there is."""

ANSWERS_ALL: dict[str, tuple[str, ...]] = {"metrics": ("status", "totals", "storage")}
"""Topics with the answers of others, whose needs they have."""

OF_BROKER: dict[type[Any], tuple[str, dict[str, tuple[Access, ...]]]] = {
    wire.Query: ("view", QUERIES),
    wire.Change: ("admin", CHANGES),
}


def needs(message: Any) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yield each action of a command, with the kind and the name of the resource, and the subjects.

    A command without a name needs nothing.
    """
    command = type(message)
    if command in OF_BROKER:
        yield from _needs_of_topic(message, *OF_BROKER[command])
        return
    for access in ACCESS[command]:
        name = getattr(message, access.field)
        if name:
            subjects = getattr(message, access.subjects) if access.subjects else ()
            kind = access.kind or message.kind
            yield _action(access, kind), kind, name, subjects


def _needs_of_topic(
    message: Any, action: str, topics: Mapping[str, tuple[Access, ...]]
) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    arguments = message.arguments
    named = False
    for access in topics.get(message.topic, ()):
        name, kind = arguments.get(access.field), access.kind or arguments.get("kind")
        # The command checks the arguments.
        if kind == PLACE and type(name) is str:
            kind, _, name = name.partition("/")
        if type(name) is str and type(kind) is str and name:
            named = True
            yield _action(access, kind), kind, name, access.subjects
    if not named:
        for topic in ANSWERS_ALL.get(message.topic, (message.topic,)):
            yield action, "broker", topic.rpartition(".")[2], ()


def _action(access: Access, kind: str) -> str:
    """The action on a thing of a kind, empty if nothing is consumed from such things."""
    return _CONSUMING.get(kind, "") if access.action == CONSUME else access.action
