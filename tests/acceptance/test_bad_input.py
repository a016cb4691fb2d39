"""Whatever a peer sends: a numbered ERROR to it, and no other effect (promise 5).

Beside each bad peer another client holds a conversation, and what the broker tells of itself stays the same.
"""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf, nan
from typing import Any

import msgpack
import page
import pytest
import zmq
from depth import NIGHT
from rig_daemon import Daemon
from rig_peer import Peer, peer
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.errors import InvalidName, InvalidValue, MalamuteError
from malamute.protocol import messages
from malamute.protocol.admin import CHANGES, QUERIES
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import BY_TYPE, Error, Hello
from malamute.server.guard import PENDING_BYTES_MAX

RECORD = msgpack.packb([None, b"body"])
LONG_NAME = "x" * 256
FRAMES = 3_000 if NIGHT else 1_000
"""Frames that are no command, of chance."""

STABLE = ("sessions", "streams", "mailboxes", "services")


def command(*fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def argument_faults() -> list[tuple[str, str, str, Any]]:
    """For each argument of each topic values that it must not have."""
    return [
        (method, topic, name, value)
        for method, topics in (("query", QUERIES), ("change", CHANGES))
        for topic, kind in topics.items()
        for name, rule in arguments_of(kind).rules.items()
        for value in (inf, -inf, nan, 1e300, -1, 2**64 - 1, "/a\0b", "x" * 5000, [nan], {"a": [1]}, None)
        if not rule.holds(value)
    ]


def test_no_argument_of_any_topic_ends_the_broker(
    daemon: Daemon, connect: Callable[..., malamute.Client]
) -> None:
    """An age of infinity ended the writer once, and a NUL in a path the copier: both end the process."""
    with connect("operator") as client:
        for method, topic, name, value in argument_faults():
            with pytest.raises((InvalidValue, InvalidName)):
                getattr(client, method)(topic, **{name: value})
        assert client.query("status")["faults"] == 0


@contextmanager
def conversation(daemon: Daemon) -> Iterator[malamute.Client]:
    """A client that publishes to itself all the time. In the end nothing was lost, doubled or refused.

    It is there to ask the broker with, too, but for another thread: so it is another client.
    """
    over = threading.Event()
    failures: list[BaseException] = []
    rounds = [0]

    def talk() -> None:
        try:
            with malamute.connect(daemon.url, address="good", timeout=PATIENCE) as client:
                client.on_event = lambda event: failures.append(AssertionError(event))
                with client.subscribe("good") as messages:
                    while not over.is_set():
                        body = b"%d" % rounds[0]
                        assert client.publish("good", "a", body, assurance="stored") == rounds[0] + 1
                        assert messages.receive(PATIENCE).body == body
                        client.send("good", "a", body)
                        assert client.receive(PATIENCE).body == body
                        rounds[0] += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    with malamute.connect(daemon.url, timeout=PATIENCE) as watcher:
        thread.start()
        eventually(lambda: rounds[0] or failures, "the first round")
        try:
            yield watcher
            before = rounds[0]
            eventually(lambda: rounds[0] > before + 1 or failures, "another round")
        finally:
            over.set()
            thread.join(PATIENCE)
    assert not failures, failures


def state_of(client: malamute.Client) -> dict[str, Any]:
    """What no bad input may change."""
    status = client.query("status")
    rows = {topic: client.query(topic) for topic in ("streams", "mailboxes", "services")}
    return {
        **{name: status[name] for name in STABLE},
        **{topic: [row["name"] for row in rows[topic]] for topic in rows},
        "mail": sum(row["messages"] for row in rows["mailboxes"] if row["name"] != "good"),
    }


BAD: dict[str, tuple[tuple[bytes, ...], int, int, int]] = {
    "an empty frame": ((b"",), 400, 0, 0),
    "the empty delimiter of a REQ": ((b"", command(12)), 400, 0, 0),
    "many empty frames": ((b"",) * 100, 400, 0, 0),
    "no msgpack": ((b"\xc1",), 400, 0, 0),
    "a map": ((msgpack.packb({}),), 400, 0, 0),
    "a number": ((b"\x02",), 400, 0, 0),
    "an empty array": ((b"\x90",), 400, 0, 0),
    "an opcode that is text": ((command("PUBLISH"),), 400, 0, 0),
    "an opcode that is a flag": ((command(True),), 400, 0, 0),
    "something after the command": ((command(12) + b"\x00",), 400, 0, 0),
    "an array that declares four thousand million items": ((b"\xdd\xff\xff\xff\xff",), 400, 0, 0),
    "text that declares four thousand million bytes": ((b"\x92\x02\xdb\xff\xff\xff\xff",), 400, 0, 0),
    "a thousand arrays in each other": ((b"\x91" * 1_000,), 400, 0, 0),
    "a million arrays in each other": ((b"\x91" * 1_000_000,), 400, 0, 0),
    "an unknown command": ((command(99),), 501, 99, 0),
    "an unknown command beyond a byte": ((command(2**40),), 501, 0, 0),
    "a negative command": ((command(-1),), 501, 0, 0),
    "protocol 1": ((b"\xaa\xa8\x01\x00",), 400, 0, 0),
    "too few fields": ((command(2, "s", 7),), 400, 2, 7),
    "too many fields": ((command(12, 1, 2),), 400, 12, 0),
    "a second frame for a command that has one": ((command(12), b"x"), 400, 12, 0),
    "an empty name": ((command(2, "", 7, ["a"], [RECORD]),), 400, 2, 7),
    "a name with a control character": ((command(2, "a\nb", 7, ["a"], [RECORD]),), 400, 2, 7),
    "a name that is too long": ((command(2, LONG_NAME, 7, ["a"], [RECORD]),), 413, 2, 7),
    "an address that is too long": ((command(3, LONG_NAME, 7, ["a"], [RECORD]),), 413, 3, 7),
    "a service that is too long": ((command(4, LONG_NAME, 7, ["a"], [RECORD]),), 413, 4, 7),
    "a stream that is too long": ((command(6, 5, LONG_NAME, [["all", ""]]),), 413, 6, 5),
    "a subject that is too long": ((command(2, "s", 7, [LONG_NAME], [RECORD]),), 413, 2, 7),
    "columns of different lengths": ((command(2, "s", 7, ["a", "b"], [RECORD]),), 400, 2, 7),
    "columns without a message": ((command(2, "s", 7, [], []),), 400, 2, 7),
    "a batch of 10,001": ((command(2, "s", 7, ["a"] * 10_001, [RECORD] * 10_001),), 413, 2, 7),
    "a list of 100,001": ((command(2, "s", 7, ["a"] * 100_001, [RECORD]),), 400, 0, 0),
    "a large record without its frame": ((command(2, "s", 7, ["a"], [None]),), 400, 2, 7),
    "a frame without its large record": ((command(2, "s", 7, ["a"], [RECORD]), RECORD), 400, 2, 7),
    "one frame for two large records": ((command(2, "s", 7, ["a", "a"], [None, None]), RECORD), 400, 2, 7),
    "a record that is text": ((command(2, "s", 7, ["a"], ["body"]),), 400, 2, 7),
    "a subject that is bytes": ((command(2, "s", 7, [b"a"], [RECORD]),), 400, 2, 7),
    "a subject that is no text": ((b"\x95\x02\xa1s\x07\x91\xa1\xff\x91\xc4\x01\x90",), 400, 0, 0),
    "a negative number": ((command(2, "s", -1, ["a"], [RECORD]),), 400, 2, 0),
    "a number of 64 bits": ((command(2, "s", 2**63, ["a"], [RECORD]),), 400, 2, 0),
    "a number that leaves a gap": ((command(2, "s", 1_000, ["a"], [RECORD]),), 421, 2, 1_000),
    "a stream of the broker's own": ((command(2, "$s", 0, ["a"], [RECORD]),), 401, 2, 0),
    "a mailbox of the broker's own": ((command(3, "$m", 0, ["a"], [RECORD]),), 404, 3, 0),
    "an unknown option of a message": ((command(3, "m", 0, ["a"], [RECORD], [{"x": 1}]),), 416, 3, 0),
    "a list as an option": ((command(3, "m", 0, ["a"], [RECORD], [{"correlation": []}]),), 400, 3, 0),
    "no criteria": ((command(6, 5, "s", []),), 400, 6, 5),
    "101 criteria": ((command(6, 5, "s", [["all", ""]] * 101),), 413, 6, 5),
    "an unknown family": ((command(6, 5, "s", [["magic", ""]]),), 415, 6, 5),
    "an unknown start": ((command(6, 5, "s", [["all", ""]], "", "yesterday"),), 416, 6, 5),
    "a reply for no offer": ((command(5, 5, 0, [1], [True], [RECORD]),), 404, 5, 0),
    "an ack for no source": ((command(10, 5, [[1, 1]]),), 404, 10, 5),
    "a range that goes backwards": ((command(10, 5, [[2, 1]]),), 400, 10, 5),
    "1,001 ranges": ((command(10, 5, [[1, 1]] * 1_001),), 413, 10, 5),
    "credit for no source": ((command(9, 5, 1),), 404, 9, 5),
    "credit below no limit": ((command(9, 5, -2),), 400, 9, 5),
    "the end of no source": ((command(8, 5),), 404, 8, 5),
    "a question about nothing": ((command(11, 5, "nothing", {}),), 416, 11, 5),
    "a question with an unknown argument": ((command(11, 5, "status", {"x": 1}),), 416, 11, 5),
}
"""Frames that an open session may not send, and the ERROR to them: code, opcode, number or source."""

SAMPLES = [sample.value for sample in page.examples() if sample.kind in vars(messages)]
"""The messages of the specification: it has some for each command."""

VALID = [message for message in SAMPLES if BY_TYPE[type(message)].opcode < 64]
OF_THE_BROKER = [message for message in SAMPLES if BY_TYPE[type(message)].opcode >= 64]


def test_the_samples_are_of_every_command() -> None:
    assert {type(message) for message in SAMPLES} == {*BY_TYPE}


@pytest.fixture
def bad(daemon: Daemon) -> Iterator[Peer]:
    """A peer with an open session."""
    with peer(daemon.url) as made:
        made.open("bad")
        yield made


def test_each_bad_command_gets_its_numbered_error_and_changes_nothing(daemon: Daemon, bad: Peer) -> None:
    """WP28."""
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        for words, (frames, *expected) in BAD.items():
            assert bad.errors_to(frames) == [tuple(expected)], words
        assert state_of(watcher) == before


def test_commands_of_the_broker_are_not_for_a_client_to_send(daemon: Daemon, bad: Peer) -> None:
    """WP28."""
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        for message in OF_THE_BROKER:
            answers = bad.errors_to([bytes(frame) for frame in encode(message)])
            assert [answer[:2] for answer in answers] == [(405, BY_TYPE[type(message)].opcode)]
        assert state_of(watcher) == before


def test_before_hello_every_command_is_unexpected(daemon: Daemon) -> None:
    """WP21, WP28."""
    # A connection with many bytes before HELLO is ended, and so is one that takes long: each has its own.
    others = [message for message in VALID if not isinstance(message, Hello)]
    small = [message for message in others if sum(map(len, encode(message))) < PENDING_BYTES_MAX // 2]
    assert 0 < len(others) - len(small) <= 2
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        for message in small:
            with peer(daemon.url) as stranger:
                answer = stranger.ask(message)
            assert isinstance(answer, Error), message
            assert answer.code == 405, message
        assert state_of(watcher) == before


@pytest.mark.parametrize("identity", [b"\1short", b"\1" + b"x" * 100, None])
def test_a_routing_id_that_is_none_of_ours_is_refused(daemon: Daemon, identity: bytes | None) -> None:
    """WP28: too short, too long, or made up by the socket itself."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if identity:
        dealer.set(zmq.ROUTING_ID, identity)
    dealer.connect(daemon.url)
    try:
        answer = Peer(dealer).ask(Hello([2], "mallory"))
    finally:
        context.destroy(0)
    assert isinstance(answer, Error)
    assert (answer.code, answer.about) == (416, 1)


@pytest.mark.parametrize("seed", [5])
def test_random_cut_and_mutated_frames_get_an_error_each_and_change_nothing(
    daemon: Daemon, bad: Peer, seed: int
) -> None:
    """WP28."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        codes = set()
        for frames in bad_frames(chance, FRAMES):
            answers = bad.errors_to(frames)
            assert len(answers) == 1, frames
            codes.add(answers[0][0])
        assert state_of(watcher) == before
    print(f"codes {sorted(codes)}")
    assert codes >= {400, 501}


def bad_frames(chance: random.Random, count: int) -> Iterator[tuple[bytes, ...]]:
    """Frames that are no command: random ones, and what is left of good ones."""
    spoil: list[Callable[[random.Random, bytes], bytes]] = [_random, _cut, _mutated, _doubled]
    made = 0
    while made < count:
        frame, *rest = (bytes(frame) for frame in encode(chance.choice(VALID)))
        frames = (chance.choice(spoil)(chance, frame), *rest)
        if not _is_command(frames):
            made += 1
            yield frames


def _random(chance: random.Random, frame: bytes) -> bytes:
    return chance.randbytes(chance.randrange(40))


def _cut(chance: random.Random, frame: bytes) -> bytes:
    return frame[: chance.randrange(len(frame))]


def _mutated(chance: random.Random, frame: bytes) -> bytes:
    spoiled = bytearray(frame)
    for _ in range(chance.randrange(1, 4)):
        spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
    return bytes(spoiled)


def _doubled(chance: random.Random, frame: bytes) -> bytes:
    place = chance.randrange(len(frame))
    return frame[:place] + frame[place : place + 300] * chance.randrange(2, 100) + frame[place:]


def _is_command(frames: tuple[bytes, ...]) -> bool:
    try:
        decode(frames)
    except MalamuteError:
        return False
    return True


def test_a_command_over_the_limit_is_refused_and_far_over_it_its_connection_is_ended(
    daemon: Daemon, bad: Peer
) -> None:
    """WP28: what is refused gets an answer; what is beyond reason is not even read."""
    most = daemon.config.limits.message_bytes
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        memory = daemon.anonymous_mib
        assert bad.errors_to((command(2, "s", 1, ["a"], [None]), bytes(most + 1))) == [(413, 2, 1)]
        assert bad.errors_to((command(2, "s", 2, ["a"] * 2, [RECORD, None]), bytes(most))) == [(413, 2, 2)]
        monitor = bad.socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        bad.send_frames(command(2, "s", 3, ["a"], [None]), bytes(2 * most))
        assert monitor.poll(int(PATIENCE * 1000)), "the connection still stands"
        bad.socket.disable_monitor()
        monitor.close(0)
        assert state_of(watcher) == before
        assert daemon.anonymous_mib < memory + 4 * most / 1024**2


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
GARBAGE = {
    "nothing": b"",
    "half a greeting": b"\xff\0\0\0\0",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("160301020001000001fc0303") + bytes(500),
    "zeros": bytes(100_000),
    "noise": random.Random(6).randbytes(100_000),
    "a greeting and noise": GREETING + random.Random(7).randbytes(1_000),
    "a greeting and an endless frame": GREETING + b"\x06" + b"\xff" * 8 + bytes(100_000),
}


def test_what_is_not_even_zeromq_does_nothing(daemon: Daemon) -> None:
    """WP28."""
    port = int(daemon.url.rpartition(":")[2])
    with conversation(daemon) as watcher:
        before = state_of(watcher)
        memory = daemon.anonymous_mib
        open_ends = []
        for data in GARBAGE.values():
            end = socket.create_connection(("127.0.0.1", port))
            open_ends.append(end)
            # It may be shown the door before it has said it all.
            with suppress(ConnectionResetError, BrokenPipeError):
                end.sendall(data)
        assert state_of(watcher) == before
        assert daemon.anonymous_mib < memory + 16
        for end in open_ends:
            end.close()
