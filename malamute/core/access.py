"""Who a peer is, and whether it may: principals, and the one check of every command.

`ACCESS` stands beside the table of states (`broker.STATES`): for every command of an open session it says
which action on which kind of thing it is, and which field has the name of that thing. What speaks of
deliveries or of a source goes by what SUBSCRIBE, OFFER or HELLO was allowed, and needs nothing more.

The one rule so far is that of the reserved names: what begins with `$` is the broker's own. A decision in
favour is remembered for each principal and name, so a command whose name is known costs a look into a set.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from malamute.errors import AccessRefused
from malamute.protocol.messages import (
    Ack,
    Bye,
    Cancel,
    Change,
    Commit,
    Credit,
    Drain,
    Hello,
    Message,
    Nak,
    Offer,
    Ping,
    Progress,
    Publish,
    Query,
    Received,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Subscribe,
    Withdraw,
)
from malamute.protocol.names import RESERVED_PREFIX

DECISIONS_MAX = 65_536
"""Names that are remembered as allowed, of all principals together. With one more, all are forgotten."""


class Principal(NamedTuple):
    """Who a peer is, as far as its edge found out. A session belongs to the `user` that opened it.

    `method` is how the peer was authenticated, and `listener` the endpoint that it connected to; both are
    empty if that is not known.
    """

    user: str = ""
    groups: frozenset[str] = frozenset()
    method: str = ""
    listener: str = ""


ANONYMOUS = Principal()
"""Any peer of an edge that asks nobody who he is."""


class Access(NamedTuple):
    """What a command does to a thing, whose name is in this field.

    The kind is `stream`, `cursor`, `mailbox`, `service`, `client` or `topic` (of QUERY and CHANGE). If it is
    empty, the command says in its own field `kind` what it is.
    """

    action: str
    kind: str
    field: str


_OWN: tuple[Access, ...] = ()
"""Of the session itself, or of sources that it was allowed to have."""

ACCESS: dict[type[Any], tuple[Access, ...]] = {
    Hello: (Access("receive", "mailbox", "address"),),
    Publish: (Access("publish", "stream", "stream"),),
    Send: (Access("send", "mailbox", "address"),),
    Request: (Access("request", "service", "service"),),
    Reply: _OWN,
    Subscribe: (Access("read", "stream", "stream"), Access("commit", "cursor", "cursor")),
    Offer: (Access("offer", "service", "service"),),
    Cancel: _OWN,
    Credit: _OWN,
    Ack: _OWN,
    Nak: _OWN,
    Reject: _OWN,
    Progress: _OWN,
    Release: _OWN,
    Drain: _OWN,
    Withdraw: (Access("withdraw", "", "name"),),
    Query: (Access("query", "topic", "topic"),),
    Ping: _OWN,
    Received: _OWN,
    Bye: _OWN,
    Commit: (Access("read", "stream", "stream"), Access("commit", "cursor", "cursor")),
    Change: (Access("change", "topic", "topic"),),
}
"""What each command of an open session needs."""

_CURSOR = (Access("read", "stream", "stream"), Access("commit", "cursor", "cursor"))
_STREAM = (Access("change", "stream", "stream"),)
_FEED = (Access("change", "service", "service"), Access("change", "stream", "stream"))
_QUEUE = (Access("change", "", "name"),)

CHANGES: dict[str, tuple[Access, ...]] = {
    "cursor.set": _CURSOR,
    "cursor.delete": _CURSOR,
    "stream.create": _STREAM,
    "stream.retain": _STREAM,
    "stream.purge": _STREAM,
    "stream.delete": _STREAM,
    "feed.set": _FEED,
    "feed.delete": _FEED,
    "queue.redrive": _QUEUE,
    "queue.purge": _QUEUE,
    "broker.reload": (),
    "client.disconnect": (Access("change", "client", "id"),),
    "journal.backup": (),
}
"""What each topic of CHANGE needs beside that; the fields are its arguments."""

_NONE: frozenset[str] = frozenset()


class Permissions:
    """What one principal may do. `fast` has, by command, the place of a name and the names that are allowed.

    A command that is not in it needs nothing; one whose name is not among them is to be checked.
    """

    __slots__ = ("__weakref__", "_allowed", "_control", "fast", "principal")

    def __init__(self, principal: Principal, control: AccessControl) -> None:
        self.principal = principal
        self._control = control
        self._allowed: dict[tuple[str, str], set[str]] = {}
        self.fast: dict[type[Any], tuple[int, Container[object]]] = {}
        for command, needed in ACCESS.items():
            if needed:
                first = needed[0]
                # Where more than one name is to be checked, one that is known says nothing of the others.
                alone = len(needed) == 1 and first.kind and command is not Change
                allowed = self._names(first.action, first.kind) if alone else _NONE
                self.fast[command] = (command._fields.index(first.field), allowed)

    def check(self, message: Message) -> None:
        """Check a command.

        Raises:
            AccessRefused: the principal may not do that.
        """
        for action, kind, name in _needs(message):
            if name not in self._names(action, kind):
                self._decide(action, kind, name)

    def _decide(self, action: str, kind: str, name: str) -> None:
        if self._control.is_reserved(action, kind, name):
            raise AccessRefused(
                f"the name {name!r} is reserved for the broker: expected one without '$' at its beginning"
            )
        self._control.count()
        self._names(action, kind).add(name)

    def _names(self, action: str, kind: str) -> set[str]:
        return self._allowed.setdefault((action, kind), set())

    def forget(self) -> None:
        """Decide all anew."""
        for names in self._allowed.values():
            names.clear()


class AccessControl:
    """The permissions of all principals. `published` are the broker's own streams that anybody may read."""

    def __init__(self, published: frozenset[str] = frozenset()) -> None:
        self._published = published
        self._decisions = 0
        # They go with the last session of their principal.
        self._permissions: WeakValueDictionary[Principal, Permissions] = WeakValueDictionary()

    def of(self, principal: Principal) -> Permissions:
        """What a principal may do."""
        permissions = self._permissions.get(principal)
        if permissions is None:
            permissions = self._permissions[principal] = Permissions(principal, self)
        return permissions

    def is_reserved(self, action: str, kind: str, name: str) -> bool:
        """Whether a thing is the broker's own, and not for a client to do this with.

        A private mailbox has a reserved name, too, and takes messages from whoever was told of it.
        """
        if not name.startswith(RESERVED_PREFIX) or kind in ("client", "topic"):
            return False
        if kind == "mailbox":
            return action == "receive"
        return not (action == "read" and name in self._published)

    def count(self) -> None:
        """One more decision is to be remembered."""
        if self._decisions >= DECISIONS_MAX:
            self._decisions = 0
            for permissions in [*self._permissions.values()]:
                permissions.forget()
        self._decisions += 1


def _needs(message: Any) -> Iterator[tuple[str, str, str]]:
    """Each action of a command, with the kind and the name of the thing. What has no name needs nothing."""
    for access in ACCESS[type(message)]:
        name = getattr(message, access.field)
        if name:
            yield access.action, access.kind or message.kind, name
    if type(message) is Change:
        arguments = message.arguments
        for access in CHANGES.get(message.topic, ()):
            name, kind = arguments.get(access.field), access.kind or arguments.get("kind")
            # Whether the arguments are what they have to be, the change finds out.
            if type(name) is str and type(kind) is str and name:
                yield access.action, kind, name
