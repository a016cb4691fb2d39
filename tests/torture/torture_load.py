"""The clients that are tortured: each is a process that may be killed at any moment, and notes what it does.

All three patterns are at work, at a pace that leaves the machine some time. A client that was killed has a
successor with the next number and the same address. Givers go on until the file `enough` is in the directory
of the histories, readers until they read the last message, and who settles until there is the file `over`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bad_machine import SPEED
from history import (
    COMMIT,
    COMMITTED,
    DELIVERED,
    DURABLE,
    FINISHED,
    GAP,
    LOOKED,
    OUTCOME,
    PUBLISH,
    PUBLISH_REFUSED,
    PUBLISHED,
    PURGE,
    PURGE_REFUSED,
    PURGED,
    READ,
    SEND,
    SEND_REFUSED,
    SENT,
    SETTLED,
    SUBSCRIBE,
    FileRecorder,
)

import malamute
from malamute.client.events import Event, Gap
from malamute.errors import (
    AddressTaken,
    Disconnected,
    Failed,
    LinkError,
    MalamuteError,
    NumberTooOld,
    Refused,
    TimedOut,
    UnexpectedCommand,
)
from malamute.journal.reader import StoreReader

STREAM, MAILBOX, ONCE, SERVICE = "torture", "tracked", "once", "torture"
LAST = "the last one"
ENOUGH, OVER = "enough", "over"

PATIENCE = 180.0 * SPEED
"""Seconds after which what was waited for counts as not coming: longer than any fault takes."""

BATCH = 20
PAUSE_SECONDS = 0.02
"""Between two rounds of a client, unless asked for otherwise."""
COMMIT_EVERY = 50
READ_BYTES = 1 << 16


class Place(NamedTuple):
    """Where a client finds its broker, the store beside it, and where it notes what it does."""

    url: str
    store: Path
    histories: Path
    names: str
    """What the names of streams and queues begin with: no two episodes share one."""
    pause_seconds: float = PAUSE_SECONDS


class Life:
    """One life of a client."""

    def __init__(self, role: str, number: int, place: Place) -> None:
        self.place = place
        self.client_name = f"{role}-{number}"
        self.note = FileRecorder(place.histories / f"{self.client_name}.jsonl", self.client_name)
        self.chance = Random(self.client_name)
        self._address = f"{place.names}{ADDRESSES.get(role, role.replace(' ', '-'))}"
        self._keys = (f"{self.client_name}.{number}" for number in count())

    def name(self, name: str) -> str:
        """The name of a stream or queue in this episode."""
        return self.place.names + name

    def connect(self) -> malamute.Client:
        client = malamute.connect(self.place.url, address=self._address, timeout=PATIENCE)
        client.on_event = self._on_event
        return client

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Gap):
            self.note(GAP, event.stream, sequence=event.first, last=event.last, text=event.reason)

    def rounds(self, file: str) -> Iterator[str]:
        """A new key for each round, until there is the file."""
        while not (self.place.histories / file).exists():
            yield next(self._keys)
            time.sleep(self.place.pause_seconds)

    def result(self, done: str, refused: str, name: str, key: str, answer: Callable[[], Any]) -> bool:
        """Note what came of something. Nothing is noted where that is not known."""
        try:
            value = answer()
        except (AddressTaken, Disconnected, NumberTooOld, UnexpectedCommand):
            raise
        except (Refused, Failed) as error:
            self.note(refused, name, key, text=str(error))
            return False
        except LinkError:
            return False
        self.note(done, name, key, sequence=value if isinstance(value, int) else 0)
        return True


def publish(life: Life) -> None:
    """Batches, several under way at the same time."""
    stream = life.name(STREAM)
    with life.connect() as client:
        out = client.publisher(stream, batch=BATCH, timeout=PATIENCE)
        for round_key in life.rounds(ENOUGH):
            receipts = []
            for number in range(3 * BATCH):
                key = f"{round_key}.{number}"
                life.note(PUBLISH, stream, key)
                with suppress(MalamuteError):
                    receipts.append((key, out.publish("a", key.encode())))
            for key, receipt in receipts:
                life.result(PUBLISHED, PUBLISH_REFUSED, stream, key, lambda r=receipt: r.wait(PATIENCE))


def send(life: Life) -> None:
    """Mail whose outcome is asked for."""
    mailbox = life.name(MAILBOX)
    with life.connect() as client:
        for round_key in life.rounds(ENOUGH):
            under_way: dict[str, Any] = {}
            for number in range(3):
                key = f"{round_key}.{number}"
                life.note(SEND, mailbox, key)
                life.result(
                    SENT,
                    SEND_REFUSED,
                    mailbox,
                    key,
                    lambda k=key, u=under_way: tracked(client, mailbox, k, u),
                )
            for key, sent in under_way.items():
                life.note(OUTCOME, mailbox, key, text=sent.wait(PATIENCE))
        life.note(FINISHED, mailbox)


def tracked(client: malamute.Client, mailbox: str, key: str, under_way: dict[str, Any]) -> None:
    """Send one."""
    options: dict[str, Any] = {"assurance": "confirmed", "tracker": key, "timeout": PATIENCE}
    under_way[key] = client.send(mailbox, "a", key.encode(), **options)


def send_again(life: Life) -> None:
    """Mail with an identity, sent more often than once."""
    mailbox = life.name(ONCE)
    with life.connect() as client:
        for key in life.rounds(ENOUGH):
            for _ in range(life.chance.randint(1, 3)):
                life.note(SEND, mailbox, key)
                life.result(
                    SENT,
                    SEND_REFUSED,
                    mailbox,
                    key,
                    lambda k=key: client.send(mailbox, "a", k.encode(), id=k, timeout=PATIENCE) and 0,
                )


def ask(life: Life) -> None:
    """Requests, some under way at the same time. Each is confirmed by its reply."""
    service = life.name(SERVICE)
    with life.connect() as client:
        for round_key in life.rounds(ENOUGH):
            under_way = {}
            for number in range(5):
                key = f"{round_key}.{number}"
                life.note(SEND, service, key)
                with suppress(LinkError):
                    under_way[key] = client.request(service, "a", key.encode(), timeout=PATIENCE)
            for key, replies in under_way.items():

                def hear(key: str = key, replies: Any = replies) -> None:
                    for reply in replies:
                        life.note(OUTCOME, service, reply.body.decode(), text="reply")

                life.result(SENT, SEND_REFUSED, service, key, hear)
        life.note(FINISHED, service)


def purge(life: Life) -> None:
    """A stream of its own that it publishes to and purges, and looks at."""
    stream = life.name(life.client_name)

    def store(client: malamute.Client, key: str) -> bool:
        life.note(PUBLISH, stream, key)
        return life.result(
            PUBLISHED,
            PUBLISH_REFUSED,
            stream,
            key,
            lambda: client.publish(stream, "a", key.encode(), assurance="stored", timeout=PATIENCE),
        )

    with life.connect() as client:
        for key in life.rounds(ENOUGH):
            if not store(client, f"{key}.before"):
                continue
            life.note(PURGE, stream, key)
            life.result(
                PURGED,
                PURGE_REFUSED,
                stream,
                key,
                lambda: client.change("stream.purge", stream=stream, timeout=PATIENCE) and 0,
            )
            if store(client, f"{key}.after"):
                with suppress(LinkError, Failed):
                    row = client.query("stream", name=stream, timeout=PATIENCE)
                    life.note(LOOKED, stream, sequence=row["first"], last=row["last"])


def reading(text: str = "", cursor: str = "", **options: Any) -> Callable[[Life], None]:
    """A reader with these options."""

    def read(life: Life) -> None:
        stream = life.name(STREAM)
        life.note(SUBSCRIBE, stream, cursor, sequence=0 if cursor else 1, text=text)
        with (
            life.connect() as client,
            client.subscribe(
                stream, start="first", cursor=cursor, credit=500, timeout=PATIENCE, **options
            ) as messages,
        ):
            for number, message in enumerate(messages, 1):
                key = message.body.decode()
                life.note(READ, stream, key, sequence=message.sequence)
                if cursor and (number % COMMIT_EVERY == 0 or key == LAST):
                    commit(life, messages, cursor, message.sequence)
                if key == LAST:
                    break
        life.note(FINISHED, stream)

    return read


def commit(life: Life, messages: Any, cursor: str, sequence: int) -> None:
    """Move the cursor."""
    stream = life.name(STREAM)
    life.note(COMMIT, stream, cursor, sequence=sequence)
    with suppress(LinkError, Failed):
        messages.commit(sequence, timeout=PATIENCE)
        life.note(COMMITTED, stream, cursor, sequence=sequence)


def receiving(name: str) -> Callable[[Life], None]:
    """The recipient of a mailbox."""

    def receive(life: Life) -> None:
        mailbox = life.name(name)
        with life.connect() as client, client.mailbox(auto_ack=False, credit=5) as mails:
            for _ in life.rounds(OVER):
                with suppress(TimedOut):
                    while mail := mails.receive(0.1):
                        at = {"sequence": mail.sequence, "attempts": mail.attempts}
                        life.note(DELIVERED, mailbox, mail.body.decode(), **at)
                        mail.ack()

    return receive


def work(life: Life) -> None:
    """A worker whose replies are confirmed."""
    service = life.name(SERVICE)
    with life.connect() as client, client.work(service, credit=3, timeout=PATIENCE) as requests:
        for _ in life.rounds(OVER):
            with suppress(TimedOut):
                while request := requests.receive(0.1):
                    key, attempts = request.body.decode(), request.attempts
                    life.note(DELIVERED, service, key, sequence=request.sequence, attempts=attempts)
                    # A reply for what it does not hold any more is refused.
                    with suppress(Refused, Failed):
                        request.reply(request.body, assurance="stored").wait(PATIENCE)
                        life.note(SETTLED, service, key, attempts=attempts)


def read_store(life: Life) -> None:
    """A reader of the broker's own files: what it sees of the stream never gets less."""
    last = 0
    with StoreReader.open(life.place.store) as store:
        for _ in life.rounds(ENOUGH):
            state = store.streams().get(life.name(STREAM))
            if state is None:
                continue
            assert state.last >= last, f"the stream ended at {last}, and then at {state.last}"
            last = state.last
            store.read(life.name(STREAM), max(last - 1000, 1), bytes_max=READ_BYTES)


class Role(NamedTuple):
    """What a client does, and whether it goes through the bad network."""

    play: Callable[[Life], None]
    far: bool


ROLES: Mapping[str, Role] = {
    "publisher a": Role(publish, far=False),
    "publisher b": Role(publish, far=True),
    "sender": Role(send, far=True),
    "repeater": Role(send_again, far=False),
    "requester": Role(ask, far=True),
    "operator": Role(purge, far=False),
    "reader": Role(reading(), far=True),
    "durable reader": Role(reading(DURABLE, committed=True), far=False),
    "cursor reader": Role(reading(cursor="torture"), far=False),
    "recipient": Role(receiving(MAILBOX), far=False),
    "repeated recipient": Role(receiving(ONCE), far=True),
    "worker a": Role(work, far=False),
    "worker b": Role(work, far=True),
    "store reader": Role(read_store, far=False),
}
GIVERS = ("publisher a", "publisher b", "sender", "repeater", "requester", "operator")
ADDRESSES = {"recipient": MAILBOX, "repeated recipient": ONCE}
"""Who receives mail has the address of the mailbox."""


def play(role: str, number: int, place: Place) -> None:
    """Be a client, as the process that this is."""
    ROLES[role].play(Life(role, number, place))
