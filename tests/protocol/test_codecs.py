"""A codec of another protocol stands beside that of protocol 2, and each encodes what many get once."""

from __future__ import annotations

from collections import Counter

import pytest

from malamute.errors import InvalidValue
from malamute.protocol import codec as module
from malamute.protocol.batch import Columns, pack_queue_payload, pack_record, pack_stream_payload, unpack
from malamute.protocol.codec import PROTOCOL_2, decode, encode
from malamute.protocol.messages import (
    Answer,
    Deliver,
    Delivery,
    Error,
    Hello,
    Offer,
    PackedAnswer,
    Publish,
    Send,
    Subscribe,
    Welcome,
)
from malamute.protocol.part import DeliveryPart, QueuePart

COLUMNS = Columns(5, 1, "ann", ["a", "b"], [pack_record(None, b"1"), pack_record(None, b"2")])


@pytest.fixture
def packed(monkeypatch) -> Counter[str]:
    """How often something was packed."""
    counts: Counter[str] = Counter()

    def counted(name, pack):
        def packing(columns):
            counts[name] += 1
            return pack(columns)

        monkeypatch.setattr(module, name, packing)

    counted("pack_stream_payload", pack_stream_payload)
    counted("pack_queue_payload", pack_queue_payload)
    return counts


class Words:
    """A codec for people."""

    signature = b"\xaa\xa8"

    def __init__(self) -> None:
        self.encoded = 0

    def check_hello(self, peer, hello) -> None:
        pass

    def decode(self, frames):
        return Publish(frames[0].decode(), 0, ["a"], [frames[1]])

    def encode(self, message):
        part = message.part
        if self not in part.encoded:
            self.encoded += 1
            part.encoded[self] = [subject.encode() for subject in part.columns.subjects]
        return [b"%d" % message.source, *part.encoded[self]]


def test_a_part_is_encoded_once_by_each_codec_however_many_peers_get_it(packed):
    part, words = DeliveryPart(COLUMNS), Words()
    for source in range(1, 6):
        delivery = Delivery(source, 4, part)
        assert decode(encode(delivery)) == Deliver(source, 4, *pack_stream_payload(COLUMNS))
        assert words.encode(delivery) == [b"%d" % source, b"a", b"b"]
    assert packed == {"pack_stream_payload": 1}
    assert words.encoded == 1


@pytest.mark.parametrize(
    ("message", "grown"),
    [
        (Hello([2], "ann"), Hello([2], "ann", token="t")),
        (Hello([2], "ann", token="t"), Hello([2], "ann", token="t", act_as="bob")),
        (Welcome(2, b"s", b"b", False, "", {}), Welcome(2, b"s", b"b", False, "", {}, user="ann")),
        (Hello([2], "ann", act_as="bob"), Hello([2], "ann", act_as="bob", signed=True)),
        (Hello([2], "ann", signed=True), Hello([2], "ann", signed=True, renews=True)),
        (Error(404, "none", 6, 1), Error(404, "none", 6, 1, 250)),
        (Subscribe(1, "weather", [["all", ""]]), Subscribe(1, "weather", [["all", ""]], existing=True)),
        (Offer(1, "printer", [["all", ""]]), Offer(1, "printer", [["all", ""]], kind="mailbox")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_field_that_an_older_peer_does_not_know_travels_only_if_it_says_something(message, grown):
    (plain,), (whole,) = encode(message), encode(grown)
    [place] = [at for at, field in enumerate(message) if field != grown[at]]
    assert len(unpack(plain)) == 1 + place
    assert len(unpack(whole)) == len(unpack(plain)) + 1
    assert (decode([plain]), decode([whole])) == (message, grown)


def test_what_is_stored_as_it_is_sent_is_not_encoded_again(packed):
    part = DeliveryPart(COLUMNS, (b"payload", b"large"))
    assert encode(Delivery(1, 4, part))[1:] == [b"payload", b"large"]
    assert not packed
    assert not part.encoded


def test_what_comes_from_a_queue_has_its_attempts_and_properties(packed):
    columns = Columns([7], [1], ["ann"], ["a"], [pack_record(None, b"1")], [3], [{"correlation": 1}])
    delivery = decode(encode(Delivery(1, 0, QueuePart(columns))))
    assert delivery == Deliver(1, 0, *pack_queue_payload(columns))
    assert packed == {"pack_queue_payload": 1}


@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "x"]}, [{}] * 20, "text"])
@pytest.mark.parametrize("ref", [0, 1, 2**40])
def test_an_answer_that_is_packed_already_is_the_same_on_the_wire(ref, value):
    assert encode(PackedAnswer(ref, module.pack(value))) == encode(Answer(ref, value))


def test_a_routing_id_has_sixteen_bytes_and_the_first_is_not_zero():
    hello = Hello([2], "ann", attempt=5)
    for peer in (b"", b"short", b"\0" * 16, b"x" * 17):
        with pytest.raises(InvalidValue) as refused:
            PROTOCOL_2.check_hello(peer, hello)
        assert (refused.value.about, refused.value.ref) == (1, 5)
    PROTOCOL_2.check_hello(b"\1" * 16, hello)


def test_small_frames_beside_a_command_are_records_in_their_places():
    frames = [module.pack((3, "bob", 0, ["a", "b", "c"], [None, b"2", None])), b"1", b"3"]
    assert decode(frames) == Send("bob", 0, ["a", "b", "c"], [b"1", b"2", b"3"])
