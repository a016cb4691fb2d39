"""What programs do with what they hold, beside being done with it; and what operators do with queues.

Programs give back, release, reject and report on what is in their hands. Some of them speak of what they have
settled long ago. Senders take back what they sent. Operators drop messages and send dead letters again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from malamute.client.session.message import Rejection
from malamute.client.session.sources import ConsumerSource, Item
from malamute.protocol.messages import Ack, Nak, Progress, Reject, Release

if TYPE_CHECKING:
    from sim_client import Client

NAK_MS = (-1, 0, 100, 1_500)
REASONS = ("", "no good", "unreadable")
SETTLED_MAX = 6


def _hands(client: Client) -> list[tuple[ConsumerSource, Item]]:
    letters = [
        (client.session.inbox.mailbox, item) for item in client.letters if client.session.inbox.mailbox
    ]
    return [*letters, *(task for task in client.tasks if not task[0].ended)]


def _put_down(client: Client, a: int) -> tuple[ConsumerSource, Item] | None:
    """Let one message out of the hands, whatever becomes of it."""
    hands = _hands(client)
    if not hands:
        return None
    source, item = hands[a % len(hands)]
    client.drop(source, item)
    client.settled = [*client.settled[-SETTLED_MAX:], (source, item.sequence)]
    return source, item


def give_back(client: Client, a: int, b: int, c: int) -> str:
    """Give a message back, to be redelivered at once, later, or when the broker thinks."""
    found = _put_down(client, a)
    if found is None:
        return ""
    source, item = found
    client.session.inbox.give_back(source, item.sequence, NAK_MS[b % 4])
    return f"gives back {item.sequence} of {source.number} for {NAK_MS[b % 4]} ms"


def release(client: Client, a: int, b: int, c: int) -> str:
    """Give a message back as if it had not been delivered."""
    found = _put_down(client, a)
    if found is None:
        return ""
    source, item = found
    client.notes.releases(client.queue_of(source), item.sequence)
    client.session.inbox.release(source, item.sequence)
    return f"releases {item.sequence} of {source.number}"


def drain(client: Client, a: int, b: int, c: int) -> str:
    """Come to an end: take nothing more, and settle what is in the hands."""
    client.notes.drains()
    client.session.inbox.drain()
    client.subscriptions = []
    return "drains"


def reject(client: Client, a: int, b: int, c: int) -> str:
    """Refuse a message for good."""
    found = _put_down(client, a)
    if found is None:
        return ""
    source, item = found
    source.finish(item.sequence, rejection=Rejection(REASONS[b % 3]))
    client.session.inbox.acknowledge_all()
    client.session.inbox.refill(source)
    return f"rejects {item.sequence} of {source.number}: {REASONS[b % 3]!r}"


def report(client: Client, a: int, b: int, c: int) -> str:
    """Say that the work goes on."""
    hands = _hands(client)
    if not hands:
        return ""
    source, item = hands[a % len(hands)]
    client.session.inbox.report(source, [item.sequence])
    return f"works on {item.sequence} of {source.number}"


def repeat(client: Client, a: int, b: int, c: int) -> str:
    """A program at fault: it speaks of what it has settled before."""
    settled = [entry for entry in client.settled if not entry[0].ended]
    if not settled:
        return ""
    source, sequence = settled[a % len(settled)]
    verb = (Ack, Nak, Reject, Release, Progress)[b % 5]
    client.book.careless.add(client.peer)
    if verb is Release:
        client.notes.releases(client.queue_of(source), sequence)
    client.session.outbox.say(verb(source.number, [[sequence, sequence]]))
    return f"says {verb.__name__} again of {sequence} of {source.number}"


def withdraw(client: Client, a: int, b: int, c: int) -> str:
    """Take back what was sent."""
    if not client.correlations:
        return ""
    kind, name, correlation = client.correlations[a % len(client.correlations)]
    client.notes.withdraws(client.mailbox, kind, name, correlation)
    client.session.questions.withdraw(kind, name, correlation)
    return f"withdraws {correlation!r} from the {kind} {name}"


def cancel_id(client: Client, a: int, b: int, c: int) -> str:
    """Take back what anybody sent under an id."""
    known = [*client.notes.history.sent_under][-8:]
    (kind, name), identity = known[a % len(known)] if known else (client.some_queue(a), "i0")
    client.notes.cancels(kind, name, identity)
    client.session.questions.cancel(kind, name, identity)
    return f"cancels {identity} in the {kind} {name}"


def purge(client: Client, a: int, b: int, c: int) -> str:
    """Drop messages, or dead letters."""
    kind, name = client.some_queue(a)
    chosen = {"limit": 1 + b // 4 % 3} if b % 4 else {}
    done = client.change("queue.purge", kind=kind, name=name, dead=c % 3 == 0, **chosen)
    return done and f"purges the {kind} {name}"


def redrive(client: Client, a: int, b: int, c: int) -> str:
    """Send dead letters again."""
    kind, name = client.some_queue(a)
    chosen = {"limit": 1 + b // 4 % 3} if b % 4 else {}
    done = client.change("queue.redrive", kind=kind, name=name, **chosen)
    return done and f"redrives the {kind} {name}"


def browse(client: Client, a: int, b: int, c: int) -> str:
    """Look into a queue."""
    kind, name = client.some_queue(a)
    client.session.questions.query("messages", {"kind": kind, "name": name, "dead": b % 2 == 0})
    return f"looks into the {kind} {name}"


VERBS: dict[str, Callable[[Client, int, int, int], str]] = {
    "give_back": give_back,
    "release": release,
    "drain": drain,
    "reject": reject,
    "report": report,
    "repeat": repeat,
    "withdraw": withdraw,
    "cancel_id": cancel_id,
    "purge": purge,
    "redrive": redrive,
    "browse": browse,
}
