"""The tables out of `$sys`, against what the clients of a real broker have measured themselves.

The clients measure by the broker's clock: they publish a mark, and read from it what time that was. So what
a client saw before and after a step encloses what the broker tells of the step, however busy the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import malamute
from malamute.client.events import Event, Gap
from malamute.client.session.message import Mail
from malamute.client.sync.client import Client
from malamute.config import Config, QueuesConfig, StreamsConfig
from malamute.config.sections import EventsConfig, StreamRule
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.export import export
from malamute.spark.export_location import ExportLocation
from malamute.spark.final_aggregates import PERCENTILES
from malamute.spark.history import open_history
from malamute.spark.local import analysed
from malamute.spark.partial_aggregates import EACH_DOUBLING
from malamute.spark.scan import ExportedHistory
from malamute.testing import Broker, small_config

if TYPE_CHECKING:
    from malamute.client.sync.consumers import Mailbox, Work

PATIENCE = 30.0
MILLISECONDS = 10**6
BUCKET = 2 ** (1 / EACH_DOUBLING)
SERVICE = "sums.fast"
ATTEMPTS = 1 + 1 + 2 + 1 + 3
"""Deliveries of the five requests."""

KEPT = 50


def config() -> Config:
    """A broker that tells everything, gives up after three attempts, and keeps little of the news."""
    return replace(
        small_config(),
        events=EventsConfig(settled=True),
        queues=QueuesConfig(max_deliver=3, backoff=()),
        streams=StreamsConfig(rule=(StreamRule(pattern="news", count=KEPT),)),
    )


class Marks:
    """The time at the broker."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream = client.subscribe("marks")

    def now(self) -> int:
        """Nanoseconds, after all that this client has seen, and before all that it will do."""
        self._client.publish("marks", "m", b"", assurance="stored")
        return self._stream.receive(PATIENCE).time_ns

    def pass_ms(self, count: int) -> None:
        """Let some time pass."""
        until = self.now() + count * MILLISECONDS
        while self.now() < until:
            pass


class Seen(NamedTuple):
    """The times of a message that a client knows: at the broker, and around the two other ends."""

    queued: int
    delivered: tuple[int, int]
    settled: tuple[int, int]

    def extent(self, what: str) -> tuple[int, int]:
        """How long it took, at the least and at the most."""
        queued = (self.queued, self.queued)
        begin = {"queue_time": queued, "processing_time": self.delivered, "total_time": queued}[what]
        end = {"queue_time": self.delivered, "processing_time": self.settled, "total_time": self.settled}[
            what
        ]
        return end[0] - begin[1], end[1] - begin[0]


class Reader:
    """Takes the messages of a queue one after the other, and sees how long each takes."""

    def __init__(self, client: Client, marks: Marks) -> None:
        self.seen: dict[int, Seen] = {}
        self._client = client
        self._marks = marks
        self._free = marks.now()

    def take(self, source: Mailbox | Work, settle: Callable[[Mail], None]) -> None:
        """Hold the next message for a while, and settle it."""
        mail = source.receive(PATIENCE)
        known = self.seen.get(mail.sequence)
        # The message may have come as soon as the one before was settled.
        delivered = known.delivered if known else (max(self._free, mail.time_ns), self._marks.now())
        self._marks.pass_ms(10)
        self._free = begun = self._marks.now()
        settle(mail)
        self._client.flush()
        # Its operations are stored when the first mark is, and the second one is later.
        self._marks.now()
        self.seen[mail.sequence] = Seen(mail.time_ns, delivered, (begun, self._marks.now()))


class Measured(NamedTuple):
    """The measurements of the clients, and the reports of the broker."""

    times: dict[str, list[Seen]]
    gaps: list[Gap]
    service: dict[str, Any]


def work(request: Mail) -> None:
    """Do a request at once or the second time, refuse it, or fail."""
    if request.subject == "refuse":
        request.reject("never")
    elif request.subject == "fail" or (request.subject == "twice" and not request.redelivered):
        request.nak()
    else:
        request.ack()


def requests(url: str) -> tuple[list[Seen], dict[str, Any]]:
    """A worker comes late to five requests."""
    with malamute.connect(url, address="asker") as asker, malamute.connect(url, address="worker") as worker:
        marks = Marks(worker)
        for what in ("do", "do", "twice", "refuse", "fail"):
            asker.request(SERVICE, what, b"")
        marks.pass_ms(20)
        reader = Reader(worker, marks)
        with worker.work(SERVICE, "#") as offer:
            for _ in range(ATTEMPTS):
                reader.take(offer, work)
            return [*reader.seen.values()], worker.query("service", name=SERVICE)


def mail(url: str) -> list[Seen]:
    """Mail waits for its reader, and other mail is gone before anybody reads it."""
    with malamute.connect(url, address="bob") as bob, malamute.connect(url, address="eve") as sender:
        marks = Marks(bob)
        for _ in range(3):
            sender.send("bob", "letter", b"")
            marks.pass_ms(5)
        lost = sender.send("nobody", "letter", b"", ttl=0.001, assurance="confirmed")
        assert lost.wait(PATIENCE) == "expired"
        reader = Reader(bob, marks)
        with bob.mailbox(auto_ack=False, credit=1) as mailbox:
            for _ in range(3):
                reader.take(mailbox, Mail.ack)
        return [*reader.seen.values()]


def news(url: str) -> list[Gap]:
    """A reader falls behind, and what it has not read is not kept."""
    gaps: list[Gap] = []

    def note(event: Event) -> None:
        if isinstance(event, Gap):
            gaps.append(event)

    with malamute.connect(url, address="slow") as slow, malamute.connect(url) as publisher:
        slow.on_event = note
        with slow.subscribe("news", credit=1) as subscription:
            last = 5 * KEPT
            for number in range(last):
                publisher.publish("news", "n", b"%d" % number, assurance="stored")
            while subscription.receive(PATIENCE).sequence < last:
                pass
    return gaps


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Path]:
    """The measurements of the clients, and the history that was exported then."""
    place = tmp_path_factory.mktemp("told")
    with Broker(place / "data", config=config()) as broker:
        seen, service = requests(broker.url)
        times = {f"service {SERVICE}": seen, "mailbox bob": mail(broker.url)}
        found = Measured(times, news(broker.url), service)
    with open_history(data=str(place / "data")) as history:
        for stream in history.streams():
            export(history, stream, ExportLocation(str(place / "history")))
    return found, place / "history"


def test_what_the_clients_measured(measured: tuple[Measured, Path]) -> None:
    clients, history = measured
    with analysed(ExportedHistory(str(history)), AnalyzeOptions()) as (engine, tables):
        names = ("queues", "queue_times", "consumers", "events")
        queues, times, consumers, events = (engine.rows(tables[name]) for name in names)
    assert {(r["queue"], r["outcome"]): (r["messages"], r["redeliveries"]) for r in queues} == {
        ("mailbox eve", "acknowledged"): (1, 0),  # what became of the letter that was gone
        (f"service {SERVICE}", "acknowledged"): (3, 1),
        (f"service {SERVICE}", "rejected"): (1, 0),
        (f"service {SERVICE}", "dead-lettered"): (1, 2),
        ("mailbox bob", "acknowledged"): (3, 0),
        ("mailbox nobody", "expired"): (1, 0),
    }
    reported = {(row["queue"], row["time"]): row for row in times}
    for queue, seen in clients.times.items():
        for what in ("queue_time", "processing_time", "total_time"):
            least, most = map(sorted, zip(*(each.extent(what) for each in seen), strict=True))
            for share in PERCENTILES:
                rank = ceil(share * len(seen)) - 1
                seconds = reported[queue, what][f"p{round(100 * share)}"]
                assert least[rank] / BUCKET <= seconds * NS_PER_SECOND <= most[rank] * BUCKET, (
                    queue,
                    what,
                    share,
                )
    assert [(r["stream"], r["consumer"], r["fell_behind"], r["gaps"], r["missed"]) for r in consumers] == [
        ("news", "slow", 1, len(clients.gaps), sum(gap.last - gap.first + 1 for gap in clients.gaps))
    ]
    assert clients.gaps
    happened = {(row["event"], row["name"]): row["times"] for row in events}
    assert happened["service.settled", SERVICE] == 5
    assert happened["mailbox.expired", "nobody"] == 1
    for event, field, presence in (("redelivered", "redelivered", 3), ("dead", "dead_letters", 2)):
        assert happened[f"service.{event}", SERVICE] == clients.service[field] == presence
