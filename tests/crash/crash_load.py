"""The load of a broker whose disk is recorded: a bit of everything, by a seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from random import Random

import malamute
from malamute.errors import NotFound, TimedOut

PATIENCE = 60.0
"""Seconds."""

LARGE = 70_000
"""Bytes of a body that travels, and is stored, beside the others."""

KEPT, SHORT = "kept", "short"
"""A stream that keeps everything, and one that the ring shortens all the time."""

BUCKET = "results"


class Load:
    """Clients of each kind, and what they do in one step."""

    def __init__(self, url: str, seed: int, stack: ExitStack) -> None:
        self._url = url
        self._chance = Random(seed)
        self._numbers = count(1)
        self._stack = stack
        self._ann, self._bob, self._operator = map(self._connect, ("ann", "bob", "operator"))
        self._operator.change("stream.retain", stream=SHORT, count=20)
        self._operator.change(
            "feed.set", source=f"stream/{KEPT}", feed="archive", target="service/archive", start="first"
        )
        self._mailbox = self._bob.mailbox(auto_ack=False, credit=4)
        self._work = self._bob.work("printer", credit=2)
        self._archive = self._bob.work("archive", credit=2)
        self._reader = self._ann.subscribe(KEPT, start="first", cursor="reader")
        self._kinds: list[tuple[int, Callable[[], object]]] = [
            (5, self._publish),
            (2, self._publish_short),
            (2, self._publish_unconfirmed),
            (4, self._send),
            (3, self._take_mail),
            (2, self._request),
            (2, self._take_feed),
            (2, self._commit),
            (2, self._change),
            (3, self._bucket),
            (2, self._finish_with_result),
            (1, self._return),
        ]

    def step(self) -> None:
        """Do one thing."""
        weights, steps = zip(*self._kinds, strict=True)
        self._chance.choices(steps, weights)[0]()

    def _connect(self, address: str) -> malamute.Client:
        client = malamute.connect(self._url, address=address, timeout=PATIENCE)
        client.on_event = lambda event: None
        return self._stack.enter_context(client)

    def _body(self) -> bytes:
        body = b"body-%d-" % next(self._numbers)
        return body.ljust(LARGE, b".") if self._chance.random() < 0.02 else body

    def _publish(self) -> None:
        many = self._chance.randrange(1, 4)
        subjects = [f"a.{self._chance.randrange(5)}" for _ in range(many)]
        self._ann.publish_batch(KEPT, subjects, [self._body() for _ in subjects])

    def _publish_short(self) -> None:
        self._bob.publish(SHORT, "b", self._body().ljust(300, b"-"), assurance="stored")

    def _publish_unconfirmed(self) -> None:
        self._ann.publish(KEPT, "a.none", self._body())

    def _send(self) -> None:
        body, identity = self._body(), f"id{next(self._numbers)}"
        assurance = "confirmed" if self._chance.random() < 0.3 else "stored"
        for _ in range(self._chance.choice([1, 1, 2])):
            self._ann.send("bob", "hello", body, assurance=assurance, id=identity)
        if self._chance.random() < 0.2:
            self._operator.send("nobody", "hello", self._body(), delay=self._chance.choice([0, 1000]))

    def _take_mail(self) -> None:
        try:
            mail = self._mailbox.receive(0.05)
        except TimedOut:
            return
        self._chance.choice([mail.ack, mail.ack, mail.nak, mail.reject, mail.release])()
        self._bob.flush()
        try:
            self._ann.receive(0)
        except TimedOut:
            return

    def _request(self) -> None:
        replies = self._ann.request("printer", "print", self._body(), key=f"k{self._chance.randrange(3)}")
        request = self._work.receive(PATIENCE)
        if self._chance.random() < 0.3:
            request.reply(self._body(), final=False)
        request.reply(self._body())
        for _ in replies:
            continue

    def _take_feed(self) -> None:
        try:
            request = self._archive.receive(0.05)
        except TimedOut:
            return
        if self._chance.random() < 0.8:
            request.reply(b"")
        else:
            request.nak()

    def _commit(self) -> None:
        try:
            messages = self._reader.take(self._chance.randrange(1, 9), 0.05)
        except TimedOut:
            return
        if messages:  # else a gap alone has come
            self._reader.commit(messages[-1])

    def _change(self) -> None:
        number = next(self._numbers)
        feed = {"source": f"stream/{KEPT}", "feed": f"feed{number}", "target": f"service/feed{number}"}
        topic, arguments = self._chance.choice(
            [
                ("user.add", {"name": f"user{number}", "key": f"{number:040}"}),
                ("group.add", {"name": f"group{number}"}),
                ("feed.set", feed),
                ("stream.create", {"stream": f"made{number}"}),
                ("stream.retain", {"stream": SHORT, "count": 20 + number % 9}),
                ("cursor.set", {"stream": KEPT, "cursor": f"cursor{number}", "start": "first"}),
                ("queue.purge", {"kind": "mailbox", "name": "nobody", "limit": 2}),
                ("queue.redrive", {"kind": "mailbox", "name": "bob", "limit": 1}),
                ("stream.purge", {"stream": SHORT}),
                ("stream.delete", {"stream": "temporary"}),
            ]
        )
        if topic == "stream.delete":
            self._operator.publish("temporary", "c", self._body(), assurance="stored")
        with suppress(NotFound):  # the stream, or the queue
            self._operator.change(topic, timeout=PATIENCE, **arguments)

    def _bucket(self) -> None:
        # A key that is deleted is put once.
        bucket, once = self._ann.bucket(BUCKET), f"once-{next(self._numbers)}"
        kept = f"key-{self._chance.randrange(3)}"
        bucket.put(kept, self._body(), ttl=self._chance.choice([None, 3600]))
        bucket.put(once, self._body())
        bucket.add("count", 1)
        if self._chance.random() < 0.5:
            bucket.delete(once)

    def _finish_with_result(self) -> None:
        self._ann.send("results", "job", self._body(), assurance="stored")
        with self._bob.consume("results", auto_ack=False) as jobs:
            jobs.receive(PATIENCE).ack(put=(BUCKET, f"result-{next(self._numbers)}", self._body()))

    def _return(self) -> None:
        with malamute.connect(self._url, address="guest", timeout=PATIENCE) as guest:
            guest.publish(KEPT, "a.guest", self._body(), assurance="stored")
            guest.send("bob", "hello", self._body())


def play(url: str, seed: int, steps: int) -> None:
    """Have a broker do so many things, and leave."""
    with ExitStack() as stack:
        load = Load(url, seed, stack)
        for _ in range(steps):
            load.step()
