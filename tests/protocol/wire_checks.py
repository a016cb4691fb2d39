"""Rules that hold of any bytes that come by the wire, whoever thinks of them: hypothesis or the fuzzer."""

from malamute.errors import InvalidName, Malformed, TooLarge, UnknownCommand
from malamute.protocol.batch import headers_of, is_plain, pack_record, unpack_payload, unpack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import BY_TYPE, error_message
from malamute.protocol.names import Uri, is_name

FAULTS = (Malformed, TooLarge, UnknownCommand)
GOOD = pack_record({"unit": "C"}, b"body")


def check_decode(frames: list[bytes]) -> None:
    """The invariant: a fault is one of three and can be reported to the peer; a message is itself again."""
    try:
        message = decode(frames)
    except FAULTS as error:
        answer = error_message(error)
        assert decode(encode(answer)) == answer
        return
    spec = BY_TYPE[type(message)]
    assert all(rule.holds(value) for rule, value in zip(spec.rules, message, strict=False))
    again = encode(message)
    assert encode(decode(again)) == again


def check_record(data: bytes) -> None:
    try:
        headers, body = unpack_record(data)
    except Malformed:
        assert headers_of([data]) == [{}]
        # The neighbours of the damaged record are read.
        assert headers_of([GOOD, data, GOOD]) == [{"unit": "C"}, {}, {"unit": "C"}]
        return
    assert all(type(key) is str for key in headers)
    assert all(type(frame) is bytes for frame in body)
    assert headers_of([data, GOOD]) == [headers, {"unit": "C"}] or any(
        value != value for value in headers.values()
    )


def check_payload(payload: bytes, large: list[bytes]) -> None:
    try:
        columns = unpack_payload(payload, large)
    except Malformed:
        return
    count = len(columns)
    rows = list(columns.rows())
    assert count > 0
    assert len(rows) == count
    for sequence, time, sender, subject, record, attempts, properties in rows:
        assert [type(value) for value in (subject, sequence, time, sender, attempts)] == [
            str,
            int,
            int,
            str,
            int,
        ]
        assert 1 <= sequence <= NUMBER_MAX
        assert abs(time) <= NUMBER_MAX
        assert 0 <= attempts <= NUMBER_MAX
        assert type(record) is bytes
        assert properties is None or is_plain(properties)


def check_uri(text: str) -> None:
    try:
        uri = Uri.parse(text)
    except InvalidName as error:
        str(error)
        return
    assert is_name(uri.name)
    assert Uri.parse(str(uri)) == uri
