"""All three patterns at work at once, on clients that mend their connections by themselves.

Two publishers with confirmed batches under way and a subscriber, a sender of mail and its recipient, a
requester and a worker: seven clients, each on a thread of its own. Every message carries a number, so that at
the end it can be said which arrived, and how often.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Connected, Event, Gap
from malamute.errors import TimedOut

STREAM = "load"
BATCH = 20

GIVERS = ("publisher a", "publisher b", "sender", "requester")
TAKERS = ("subscriber", "recipient", "worker")
ROLES = GIVERS + TAKERS


class Load:
    """The clients, and what they have seen.

    `urls` says where each of them connects. Each who gives rests for `pause_seconds` after each round.
    """

    def __init__(self, urls: Mapping[str, str], pause_seconds: float = 0.0) -> None:
        self.confirmed: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.mail: list[tuple[int, int]] = []
        self.work: list[tuple[int, int]] = []
        self.live: list[malamute.Message] = []
        self.gaps: list[Gap] = []
        self._urls = urls
        self._pause_seconds = pause_seconds
        self._enough = threading.Event()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        play: Mapping[str, Callable[[malamute.Client, str], None]] = {
            "publisher a": self._publish,
            "publisher b": self._publish,
            "sender": self._send,
            "requester": self._ask,
            "subscriber": self._subscribe,
            "recipient": self._receive,
            "worker": self._work,
        }
        self._threads = {
            role: threading.Thread(target=self._run, args=(role, play[role]), name=role) for role in ROLES
        }

    def __enter__(self) -> "Load":
        for role in TAKERS + GIVERS:
            self._threads[role].start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Who takes goes last: what is under way comes to its end.
        self._enough.set()
        for role in GIVERS:
            self._threads[role].join(PATIENCE)
        self._over.set()
        if error is None:
            self._join(ROLES, "a client does not come to its end")
            return
        # What ended the test is its failure, and not what came of that.
        for role in TAKERS:
            self._threads[role].join(PATIENCE)
        for failure in self._failures:
            error.add_note(f"{failure!r}: {' '.join(failure.__notes__)}")

    def progress(self) -> None:
        """Wait until everybody who gives has been confirmed something from now on."""
        for role in GIVERS:
            before = self.confirmed[role]
            eventually(lambda r=role, n=before: self.confirmed[r] > n or self._failures, f"the {role}")
        self.check()

    def settle(self) -> None:
        """Let everything that was given be confirmed, and all of it arrive."""
        self._enough.set()
        self._join(GIVERS, "not everything was confirmed")
        eventually(lambda: len({body for body, _ in self.mail}) == self.given["sender"], "all mail")

    def _join(self, roles: Sequence[str], failure: str) -> None:
        for role in roles:
            self._threads[role].join(PATIENCE)
            assert not self._threads[role].is_alive(), f"{role}: {failure}"
        self.check()

    def check(self) -> None:
        """Raise what went wrong in a thread."""
        if self._failures:
            raise self._failures[0]

    # The clients

    def _run(self, role: str, play: Callable[[malamute.Client, str], None]) -> None:
        try:
            with malamute.connect(self._urls[role], address=role, timeout=PATIENCE) as client:
                client.on_event = lambda event: self._note(role, event)
                play(client, role)
        except BaseException as error:
            error.add_note(
                f"{role}: {self}; connections {dict(self.connections)}; confirmed {dict(self.confirmed)}; "
                f"the worker had {self.work[-8:]} last"
            )
            self._failures.append(error)
            self._enough.set()

    def _note(self, role: str, event: Event) -> None:
        self.connections[role] += isinstance(event, Connected)
        if isinstance(event, Gap):
            self.gaps.append(event)

    def _publish(self, client: malamute.Client, role: str) -> None:
        with client.publisher(STREAM, batch=BATCH, timeout=PATIENCE) as out:
            self._give(out, role, 5 * BATCH)

    def _send(self, client: malamute.Client, role: str) -> None:
        with client.sender("recipient", batch=3, timeout=PATIENCE) as out:
            self._give(out, role, 30)

    def _give(self, out: "malamute.client.sync.publisher.Publisher", role: str, count: int) -> None:
        # The batches of a round are under way together, so that a fault meets them at every stage.
        while not self._enough.wait(self._pause_seconds):
            for _ in range(count):
                receipt = out.publish(role, b"%d" % self.given[role])
                self.given[role] += 1
            receipt.wait(PATIENCE)
            self.confirmed[role] += 1

    def _ask(self, client: malamute.Client, role: str) -> None:
        while not self._enough.wait(self._pause_seconds):
            bodies = [b"%d" % (self.given[role] + n) for n in range(5)]
            self.given[role] += 5
            exchanges = [client.request("svc", "do", body, timeout=PATIENCE) for body in bodies]
            for body, replies in zip(bodies, exchanges, strict=True):
                assert [reply.body for reply in replies] == [body]
            self.confirmed[role] += 1

    def _subscribe(self, client: malamute.Client, role: str) -> None:
        # A small window, so that it falls back to replay.
        with client.subscribe(STREAM, start="first", credit=500) as messages:
            while not self._over.is_set():
                self.live += messages.take(1000, 0.1)

    def _receive(self, client: malamute.Client, role: str) -> None:
        while not self._over.is_set():
            with suppress(TimedOut):
                mail = client.receive(0.1)
                self.mail.append((int(mail.body), mail.attempts))

    def _work(self, client: malamute.Client, role: str) -> None:
        with client.work("svc", credit=3) as requests:
            while not self._over.is_set():
                with suppress(TimedOut):
                    request = requests.receive(0.1)
                    self.work.append((int(request.body), request.attempts))
                    request.reply(request.body)

    # What has to hold at the end

    def check_all(self, stored: Sequence[malamute.Message]) -> None:
        """What was confirmed has arrived, exactly once or saying that it is redelivered."""
        for role in ("publisher a", "publisher b"):
            bodies = [int(message.body) for message in stored if message.subject == role]
            assert bodies == list(range(self.given[role])), role
        missed = {message.sequence for message in stored} - {message.sequence for message in self.live}
        assert not missed, "stored, and not seen live"
        check_deliveries(self.mail, self.given["sender"])
        check_deliveries(self.work, self.given["requester"])

    def __str__(self) -> str:
        return (
            f"{self.given['publisher a'] + self.given['publisher b']} messages, "
            f"{self.given['sender']} mails in {len(self.mail)} deliveries, "
            f"{self.given['requester']} requests in {len(self.work)} deliveries"
        )


def check_deliveries(deliveries: Sequence[tuple[int, int]], count: int) -> None:
    """Everything was delivered, and what was delivered again said so."""
    assert {body for body, _ in deliveries} == set(range(count))
    unflagged = Counter(body for body, attempts in deliveries if attempts == 1)
    assert max(unflagged.values()) == 1, "a delivery was repeated without saying so"


def check_taken_back(live: Sequence[int], stored: Sequence[int], gaps: Sequence[Gap]) -> list[Gap]:
    """Whoever had what is no more was notified of that, and of nothing else. Returns the other gaps."""
    reported = [(gap.first, gap.last) for gap in gaps if gap.reason == "taken-back"]
    kept, lost = set(stored), set(live) - set(stored)
    assert not {s for s in lost if not any(first <= s <= last for first, last in reported)}, "nobody told"
    assert not {s for s in kept if any(first <= s <= last for first, last in reported)}, (
        "told of what is there"
    )
    return [gap for gap in gaps if gap.reason != "taken-back"]


def check_numbering(sequences: Sequence[int], gaps: Sequence[Gap]) -> None:
    """Sequences ascend, and where one is missing a gap of a restart has told exactly which."""
    assert all(a < b for a, b in pairwise(sequences))
    missing = {(a + 1, b - 1) for a, b in pairwise(sequences) if b != a + 1}
    assert {(gap.first, gap.last) for gap in gaps} == missing
    assert {gap.reason for gap in gaps} <= {"restart"}


def read_back(url: str, stream: str = STREAM) -> tuple[list[malamute.Message], list[Gap]]:
    """The whole stream as it is stored, and the gaps that are reported in it."""
    gaps: list[Gap] = []
    stored: list[malamute.Message] = []
    with malamute.connect(url, timeout=PATIENCE) as client:
        client.on_event = lambda event: gaps.append(event) if isinstance(event, Gap) else None
        last = next(row["last"] for row in client.query("streams") if row["name"] == stream)
        with client.subscribe(stream, start="first") as messages:
            while not stored or stored[-1].sequence < last:
                stored += messages.take(10_000, PATIENCE) or pytest.fail("the stream ends too early")
    return stored, gaps
