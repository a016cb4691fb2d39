"""The register's value, histories of directories, and frames of the link between two nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from malamute.errors import AccessRefused, InUse, MalamuteError, Malformed, NotFound
from malamute.pair import codec, state
from malamute.pair.replication import NOBODY, Began, History, Shipment, common, is_behind
from malamute.pair.state import Level, Member

PAIR, CHANGE = b"p" * 16, b"c" * 16
LEVEL = Level(7, 17, 1)
A, B = Member(b"a" * 16, LEVEL, "tcp://a:1"), Member(b"b" * 16, LEVEL, "tcp://b:1", ("tcp://b:2",), "k" * 40)
FIRST = state.created(PAIR, "a", A, 1, CHANGE)
BOTH = state.joined(FIRST, "b", B, b"d" * 16)


def test_a_value_comes_back_as_it_was_and_never_over_its_limit() -> None:
    assert state.decode(state.encode(BOTH)) == BOTH
    urls = ("u" * 255,) * 4
    huge = {name: replace(member, urls=urls, link="l" * 255) for name, member in BOTH.members.items()}
    assert len(state.encode(replace(BOTH, members=huge))) < state.VALUE_BYTES_MAX
    with pytest.raises(Malformed, match="expected at most 4096"):
        state.decode(bytes(state.VALUE_BYTES_MAX + 1))
    with pytest.raises(Malformed):
        state.encode(replace(BOTH, members={"a": replace(A, urls=("u",) * 5)}))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (replace(FIRST, primary="b"), "contradicts"),
        (replace(BOTH, in_sync=("b",)), "contradicts"),
        (replace(BOTH, in_sync=("a", "a")), "contradicts"),
        (replace(BOTH, in_sync=("a", "c")), "contradicts"),
        (
            replace(BOTH, members={"a": A, "b": replace(B, replica=A.replica)}),
            "one directory under two names",
        ),
        (replace(BOTH, format=2), "newer version"),
        (replace(BOTH, members={**BOTH.members, "c": replace(B, replica=CHANGE)}), "of no pair"),
        (replace(BOTH, timeline=0), "of no pair"),
        (replace(BOTH, pair=b"short"), "of no pair"),
    ],
)
def test_a_value_that_contradicts_itself_is_refused(value: state.PairValue, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        state.encode(value)


def test_a_pair_has_two_members_with_two_directories() -> None:
    assert BOTH.in_sync == ("a",)
    with pytest.raises(InUse, match="two members"):
        state.joined(BOTH, "c", replace(A, replica=CHANGE), CHANGE)
    with pytest.raises(InUse, match="is a copy of that of a"):
        state.joined(FIRST, "b", replace(B, replica=A.replica), CHANGE)
    with pytest.raises(AccessRefused, match="a is the primary, with another directory"):
        state.joined(BOTH, "a", replace(A, replica=CHANGE), CHANGE)
    in_sync = replace(BOTH, in_sync=("a", "b"))
    assert state.joined(in_sync, "b", replace(B, replica=CHANGE), CHANGE).in_sync == ("a",)
    assert state.joined(in_sync, "b", replace(B, link="tcp://c:1"), CHANGE).in_sync == ("a", "b")


@pytest.mark.parametrize("lower", [Level(6, 17, 1), Level(7, 16, 1), Level(7, 17, 0), Level(8, 18, 0)])
def test_a_lower_level_does_not_join(lower: Level) -> None:
    with pytest.raises(AccessRefused, match="expected the same or a newer version here"):
        state.joined(FIRST, "b", replace(B, level=lower), CHANGE)
    assert (
        state.joined(FIRST, "b", replace(B, level=Level(7, 18, 1)), CHANGE).members["b"].level.operations
        == 18
    )


@pytest.mark.parametrize(
    ("value", "refusal", "said"),
    [
        (None, NotFound, "malamute pair create"),
        (replace(FIRST, pair=CHANGE), AccessRefused, "expected 7070"),
        (replace(FIRST, timeline=3), AccessRefused, "it lost its data"),
        (replace(FIRST, timeline=4, members={"b": B}), NotFound, "pair join"),
        (replace(FIRST, timeline=4, members={"a": B}), AccessRefused, "another directory"),
    ],
)
def test_a_register_that_is_empty_old_or_of_another_pair_is_not_acted_on(
    value: state.PairValue | None, refusal: type[MalamuteError], said: str
) -> None:
    with pytest.raises(refusal, match=said):
        state.check(value, PAIR, 4, "a", A.replica)
    assert state.check(replace(FIRST, timeline=4), PAIR, 4, "a", A.replica)


def history(*timelines: tuple[int, int], lsn: int) -> History:
    return History(tuple(Began(*one) for one in timelines), lsn)


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [
        (history((1, 1), lsn=9), history((1, 1), lsn=7), 7),
        (history((1, 1), (3, 8), lsn=20), history((1, 1), lsn=9), 7),
        (history((1, 1), (2, 8), lsn=20), history((1, 1), (3, 6), lsn=9), 5),
        (history((1, 1), (2, 8), lsn=7), history((1, 1), lsn=7), 7),
        (history((2, 8), lsn=20), history((1, 1), (2, 8), lsn=15), 15),
        (history((2, 8), lsn=20), history((3, 8), lsn=20), 0),
        (history(lsn=3), history((1, 1), lsn=9), 0),
    ],
)
def test_two_directories_agree_up_to_where_their_histories_part(
    one: History, other: History, agreed: int
) -> None:
    assert common(one, other) == common(other, one) == agreed


def test_a_directory_is_behind_if_the_other_has_all_of_it_and_more() -> None:
    assert is_behind(history((1, 1), lsn=7), history((1, 1), lsn=9))
    assert not is_behind(history((1, 1), lsn=9), history((1, 1), lsn=9))
    assert not is_behind(history((1, 1), (2, 8), lsn=9), history((1, 1), lsn=20))


def test_a_number_is_released_once_all_that_count_have_it_and_never_taken_back() -> None:
    shipment = Shipment("a", 10, window=100)
    shipment.joined("b", 10)
    shipment.sent(11, 60, 1.0)
    shipment.sent(12, 40, 2.0)
    assert shipment.is_full
    shipment.acked("b", 11)
    assert (shipment.released({"a", "b"}), shipment.unsynced_since, shipment.is_full) == (10, 2.0, False)
    shipment.acked("a", 12)
    assert shipment.released({"a", NOBODY}) == 10
    assert shipment.released({"a", "b"}) == 11
    assert shipment.released({"a"}) == 12
    assert shipment.released({"a", "b"}) == 12
    with pytest.raises(Malformed, match="expected at most 12"):
        shipment.acked("b", 13)
    shipment.joined("b", 5)
    assert (shipment.synced("b"), shipment.unsynced_since) == (5, None)


FRAMES: list[codec.Frame] = [
    codec.Greeting(PAIR, "a", A.replica, LEVEL, (Began(1, 1), Began(4, 9)), 12, 11, 4, True, 1 << 30),
    codec.RecordFrame(4, 12, 13, b"operations"),
    codec.WriteSets(4, 11, 13, (b"one", b"two")),
    codec.Heartbeat(4, 12.25, 13, 12),
    codec.Synced(4, 13, 11, 12.25),
    codec.CatchUp(4, b"keys"),
    codec.Goodbye("it stops"),
    codec.HandOver(5, 13),
    codec.GreetingRefused(401, "b has another directory", "tcp://a:1"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_back_as_it_was_and_damage_is_noticed(frame: codec.Frame) -> None:
    data = codec.encode(frame)
    assert codec.decode(data) == frame
    for at in range(len(data)):
        damaged = bytes([*data[:at], data[at] ^ 0x10, *data[at + 1 :]])
        for wrong in (damaged, data[:at], data + b"x"):
            with pytest.raises(Malformed):
                codec.decode(wrong)


def test_a_greeting_tells_how_far_its_directory_has_come() -> None:
    greeting = codec.decode(codec.encode(FRAMES[0]))
    assert isinstance(greeting, codec.Greeting)
    assert greeting.history == history((1, 1), (4, 9), lsn=12)
    with pytest.raises(Malformed, match="protocol 2 of a pair: expected 1"):
        codec.decode(codec.encode(FRAMES[0]).replace(b"MP\1", b"MP\2", 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_and_a_value_or_malformed(data: bytes) -> None:
    for decode in (codec.decode, state.decode):
        with pytest.raises(Malformed):
            decode(data)
