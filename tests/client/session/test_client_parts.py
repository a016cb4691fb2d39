"""The small parts: batches, records, messages, receipts, credit."""

import pickle
import subprocess
import sys
from datetime import UTC, datetime

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute import errors
from malamute.client.events import Gap, Refusal, log_event
from malamute.client.session.batch import Batch, check_subject, record_of, records_of, split_evenly
from malamute.client.session.message import Mail, Message
from malamute.client.session.outbox import Command
from malamute.client.session.window import Window
from malamute.client.sync.consumers import Request
from malamute.client.sync.receipts import Receipt
from malamute.protocol.batch import are_headers, pack_record, readable_record, unpack_record

HEADERS = st.dictionaries(
    st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(-(2**63), 2**63), st.floats(), st.none())
)


@given(st.none() | HEADERS, st.binary(max_size=50) | st.lists(st.binary(max_size=9), max_size=3))
def test_a_record_is_the_one_of_the_protocol(headers, body):
    assert record_of(headers, body) == pack_record(headers, body)


@given(st.lists(st.tuples(st.none() | HEADERS, st.binary(max_size=9)), max_size=5))
def test_records_in_bulk_open_as_one_by_one(rows):
    headers_list, bodies = [h for h, _ in rows], [b for _, b in rows]
    opened = [unpack_record(record) for record in records_of(headers_list, bodies)]
    assert repr(opened) == repr([unpack_record(record_of(h, b)) for h, b in rows])


@pytest.mark.parametrize("body", [bytearray(b"ab"), memoryview(b"ab"), [b"ab"], (memoryview(b"ab"),)])
def test_whatever_holds_bytes_can_be_a_body(body):
    assert unpack_record(record_of(None, body)) == ({}, [b"ab"])


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"a": []}, b""),
        ({"a": b""}, b""),
        ({1: "a"}, b""),
        ({"a": 2**70}, b""),
        ({"a": "\ud800"}, b""),
        (None, "half \udce9"),
        (None, ["text"]),
        (None, 5),
    ],
)
def test_what_cannot_be_a_record_is_refused_one_by_one_and_in_bulk(headers, body):
    with pytest.raises(errors.InvalidValue):
        record_of(headers, body)
    with pytest.raises(errors.InvalidValue):
        records_of([headers], [body])


def test_subjects_end_at_255_bytes():
    check_subject("é" * 127 + "a")
    with pytest.raises(errors.TooLarge):
        check_subject("é" * 128)
    with pytest.raises(errors.InvalidValue):
        check_subject(b"a")


def test_a_batch_is_full_by_messages_or_by_bytes():
    batch = Batch(2, 10**6)
    assert batch.add("a", b"", None) == 0
    assert not batch.full
    assert batch.add("b", b"", None) == 1
    assert batch.full
    assert batch.pop()[0] == ["a", "b"]
    assert not batch.full
    batch.add("c", b"x" * 65_536, None)
    assert batch.full


@given(st.lists(st.integers(0, 70_000), max_size=50), st.integers(1, 10))
def test_columns_are_cut_where_a_batch_would_be_full(sizes, most):
    records = [bytes(size) for size in sizes]
    subjects = [str(place) for place in range(len(sizes))]
    parts = list(split_evenly(subjects, records, most, 10**9))
    assert [s for part, _ in parts for s in part] == subjects
    assert [r for _, part in parts for r in part] == records
    assert all(0 < len(part) <= most and sum(map(len, part[:-1])) < 65_536 for _, part in parts)


@given(
    st.integers(1, 50),
    st.integers(1, 500),
    st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=80),
)
def test_credit_never_exceeds_the_window_and_is_never_stuck(messages, size_bytes, steps):
    window = Window(messages, size_bytes)
    credit, credit_bytes = window.grant()
    held: list[int] = []
    for arrives, size in steps:
        if arrives and credit > 0 and credit_bytes > 0:
            credit, credit_bytes = credit - 1, credit_bytes - size
            window.arrived(1, size)
            held.append(size)
        elif held:
            window.consumed(1, held.pop())
        if grant := window.refill():
            credit, credit_bytes = credit + grant[0], credit_bytes + grant[1]
        assert credit + len(held) <= messages
        assert credit_bytes + sum(held) <= size_bytes
    window.consumed(len(held), sum(held))
    grant = window.refill() or (0, 0)
    assert (credit + grant[0]) * 2 > messages
    assert (credit_bytes + grant[1]) * 2 > size_bytes


def test_without_limit_nothing_is_granted_again():
    window = Window(-1, -1)
    assert window.grant() == (-1, -1)
    window.arrived(1000, 10**9)
    window.consumed(1000, 10**9)
    assert window.refill() is None


def test_a_message_shows_what_it_is():
    record = pack_record({"unit": "C"}, [b"-3", b".5"])
    message = Message(7, 1_500_000_000_123_456_789, "alice", "temp.oslo", record)
    assert message.headers == {"unit": "C"}
    assert message.body == b"-3.5"
    assert message.frames == [b"-3", b".5"]
    assert message.time == datetime(2017, 7, 14, 2, 40, 0, 123456, tzinfo=UTC)
    assert repr(message) == f"<Message 7 'temp.oslo' from 'alice' {len(record)} bytes>"
    with pytest.raises(AttributeError):
        message.other = 1


def test_a_damaged_record_is_an_error_when_it_is_looked_at():
    message = Message(1, 0, "", "a", b"\xc1")
    with pytest.raises(errors.Malformed):
        _ = message.headers


def odd(headers):
    return msgpack.packb([headers, b"x", b"y"], use_bin_type=True)


@pytest.mark.parametrize(
    ("headers", "readable"),
    [
        ({1: 2}, {}),
        ({1: 2, "a": 3}, {"a": 3}),
        ({"a": [1], "b": True, b"c": 4}, {"b": True}),
        ({"a": b"bytes", "b": 1.5}, {"b": 1.5}),
        ("no map", {}),
        ([1, 2], {}),
    ],
)
def test_headers_that_cannot_be_any_hide_neither_the_others_nor_the_body(headers, readable):
    message = Message(1, 0, "", "a", odd(headers))
    assert (message.headers, message.body, message.frames) == (readable, b"xy", [b"x", b"y"])


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\xc0\x01",
        msgpack.packb([None, "text"]),
        msgpack.packb([{}, 5]),
        msgpack.packb({1: 2}),
    ],
)
def test_a_record_whose_body_cannot_be_told_is_an_error_of_one_kind(record):
    with pytest.raises(errors.Malformed):
        _ = Message(1, 0, "", "a", record).body


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers(-9, 9) | st.text(max_size=2) | st.binary(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.integers(0, 3) | st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=12,
    ).map(msgpack.packb)
)
def test_any_bytes_are_readable_or_malformed_and_right_ones_are_as_ever(record):
    try:
        expected = unpack_record(record)
    except errors.MalamuteError:
        try:
            headers, frames = readable_record(record)
        except errors.Malformed:
            return
        assert are_headers(headers)
        assert all(type(frame) is bytes for frame in frames)
    else:
        assert readable_record(record) == expected


def test_mail_without_properties_is_final_and_new():
    mail = Mail(1, 0, "", "a", pack_record(None, b""), 1, None, None)
    assert (mail.final, mail.redelivered, mail.correlation) == (True, False, None)
    mail.ack()


def test_a_request_has_one_final_reply():
    class Owner:
        def __init__(self):
            self.answers = []

        def finish(self, message):
            self.answers.append("ack")

        def answer(self, request, body, headers, *, final, assurance):
            self.answers.append((body, final))
            if final:
                request.completed()

    owner = Owner()
    request = Request(1, 0, "bob", "a", pack_record(None, b""), 2, None, owner)
    request.reply(b"1", final=False)
    request.reply(b"2")
    assert request.settled
    with pytest.raises(errors.NotOutstanding):
        request.reply(b"3")
    request.ack()
    assert owner.answers == [(b"1", False), (b"2", True)]


def test_a_receipt_is_a_command_and_a_place():
    command = Command(3)
    receipt = Receipt(command, 2, lambda command, timeout: command.settle(10))
    assert not receipt.done
    assert receipt.sequence == 0
    assert repr(receipt) == "<Receipt open 0>"
    assert receipt.wait() == 12
    assert receipt.done
    command.settle(0, errors.TryLater("full"))
    assert isinstance(receipt.error, errors.TryLater)
    with pytest.raises(errors.TryLater):
        receipt.wait()


def test_events_are_logged_by_default(caplog):
    caplog.set_level("INFO", logger="malamute")
    log_event(Gap("s", 1, 9, "overwritten"))
    log_event(Refusal(errors.TryLater("full")))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "overwritten" in caplog.text


def test_importing_malamute_loads_nothing_heavy():
    heavy = ("pyspark", "pyarrow", "lmdb", "click")
    code = f"import sys, malamute; malamute.connect; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_public_names_are_there():
    import malamute

    for name in malamute.__all__:
        assert getattr(malamute, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = malamute.other


def test_every_error_is_a_name_of_the_package():
    import malamute

    def tree(base):
        return {base}.union(*map(tree, base.__subclasses__()))

    ours = {error for error in tree(malamute.MalamuteError) if error.__module__ == "malamute.errors"}
    assert {error.__name__ for error in ours} <= {*malamute.__all__}
    assert all(getattr(malamute, error.__name__) is error for error in ours)


@pytest.mark.parametrize("error", [errors.TimedOut, errors.ConnectTimeout])
def test_what_took_too_long_is_a_timeout_of_python_too(error):
    late = error("no answer within 5 s")
    assert isinstance(late, TimeoutError)
    assert str(late) == f"no answer within 5 s (error {error.code})"
    again = pickle.loads(pickle.dumps(late))
    assert (type(again), again.text, again.code) == (error, "no answer within 5 s", error.code)
    told = errors.from_wire(error.code, "no answer")
    assert (type(told), told.text, str(told)) == (error, "no answer", f"no answer (error {error.code})")


def test_a_header_has_the_type_that_is_asked_for():
    message = Message(1, 0, "", "a", pack_record({"s": "x", "i": 5, "f": 1.5, "b": True, "n": None}, b""))
    assert (message.header("s", str), message.header("i", int), message.header("f", float)) == ("x", 5, 1.5)
    assert message.header("i", float) == 5.0
    assert message.header("b", bool) is True
    assert message.header("absent", str, "default") == "default"
    for name, kind in (("s", int), ("b", int), ("i", str), ("n", str), ("absent", float)):
        with pytest.raises(errors.InvalidValue):
            message.header(name, kind)
