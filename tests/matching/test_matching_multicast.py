"""WK13: whoever receives a multicast feed gets all of it, and takes what it wants with the broker's code."""

import json
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import matching_oracle as oracle
import pytest

from malamute.matching import Filter

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text("utf-8"))
GROUP, LOOPBACK = "239.255.77.1", "127.0.0.1"
NAIVE = {"topic": oracle.topic, "topic-amqp": oracle.topic_amqp}


class Receiver:
    """One of those who get the whole feed; `taken` is what its filter lets through."""

    def __init__(self, patterns, dialect="topic"):
        self._wanted = Filter(patterns, dialect)
        self.taken = []
        self.dropped = 0

    def receive(self, subject):
        if self._wanted.matches(subject):
            self.taken.append(subject)
        else:
            self.dropped += 1


def name(case):
    return f"{case['matcher']}-{case['message']}-{case['source']}"


@pytest.mark.parametrize("case", VECTORS["topic"], ids=name)
def test_wk13_receivers_of_one_feed_take_what_the_vectors_say(case):
    receivers = [Receiver([pattern], case["matcher"]) for pattern in case["subscriptions"]]
    everybody = Receiver(case["subscriptions"], case["matcher"])
    for receiver in (*receivers, everybody):
        receiver.receive(case["message"])
    assert [number for number, receiver in enumerate(receivers) if receiver.taken] == case["match"]
    assert bool(everybody.taken) == bool(case["match"])


def multicast(stack, receivers):
    """A socket that sends to all of some receivers. Skips where the system has no multicast."""
    try:
        for receiver in receivers:
            receiver.socket = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            receiver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            receiver.socket.settimeout(40)
        receivers[0].socket.bind((GROUP, 0))
        where = receivers[0].socket.getsockname()
        joined = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton(LOOPBACK))
        for receiver in receivers:
            if receiver is not receivers[0]:
                receiver.socket.bind(where)
            receiver.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        sender.connect(where)
    except OSError as error:
        pytest.skip(f"this system has no multicast on its loopback: {error}")
    return sender


def test_wk13_three_receivers_of_datagrams_take_each_what_it_wants_of_one_feed():
    wanted = (["forex.*"], ["#"], ["*.usd", "news", "forex.eur"])
    receivers = [Receiver(patterns) for patterns in wanted]
    subjects = ["forex.eur", "news", "forex.usd", "metal.usd", "weather.oslo.temp"] * 20
    with ExitStack() as stack:
        sender = multicast(stack, receivers)
        for subject in subjects:
            sender.send(subject.encode())
            for receiver in receivers:
                receiver.receive(receiver.socket.recv(1_024).decode())
    for patterns, receiver in zip(wanted, receivers, strict=True):
        assert receiver.taken == [s for s in subjects if any(NAIVE["topic"](p, s) for p in patterns)]
        assert len(receiver.taken) + receiver.dropped == len(subjects)
