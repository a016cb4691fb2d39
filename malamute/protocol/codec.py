"""Messages to frames and back: the codec of protocol 2, and the interface of a codec of another protocol.

A record of 64 KiB or more travels as a frame of its own; in a message it is in its place.

`decode` accepts any bytes of a peer: the result is a message, or one of `Malformed`, `TooLarge` and
`UnknownCommand`, and no other error. The error names the command and its number or source as far as the bytes
show them, so that the answer reaches the right waiter on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, get_args

from msgspec import ValidationError, convert, defstruct
from msgspec.msgpack import Decoder

from malamute.errors import InvalidValue, MalamuteError, Malformed, TooLarge, UnknownCommand
from malamute.protocol.batch import (
    SCANNED_BYTES,
    UNCHECKED_BYTES,
    Frame,
    join_large,
    pack,
    pack_plain,
    pack_queue_payload,
    pack_stream_payload,
    seen,
    split_large,
    unpack,
)
from malamute.protocol.fields import Number, Opcode, Ref, Rule, Source, rule_of
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.protocol.messages import (
    BY_OPCODE,
    BY_TYPE,
    VERSION,
    Answer,
    Commit,
    Deliver,
    Delivery,
    Error,
    Hello,
    Message,
    Offer,
    PackedAnswer,
    Publish,
    Reject,
    Spec,
    Subscribe,
    Welcome,
    Withdraw,
)
from malamute.protocol.part import DeliveryPart

__all__ = ["PROTOCOL_2", "Codec", "decode", "encode", "encode_records", "with_last_fields"]

ROUTING_ID_BYTES = 16

_GROWN: dict[type[Any], tuple[slice, slice, tuple[Any, ...]]] = {
    kind: (
        slice(-count, None),
        slice(None, -count),
        tuple(kind._field_defaults[name] for name in kind._fields[-count:]),
    )
    for kind, count in (
        (Hello, 4),
        (Error, 2),
        (Subscribe, 2),
        (Offer, 3),
        (Reject, 1),
        (Commit, 1),
        (Withdraw, 1),
        (Welcome, 2),
    )
}
"""The slice of the last fields that a command leaves out with their defaults, that of the others, and the
defaults: a peer that does not know such a field refuses the command. PUBLISH does so elsewhere."""


class Codec(Protocol):
    """A protocol, from the broker's side: frames of peers become messages, and messages become frames.

    A peer speaks this protocol if its first frame begins with `signature`.
    """

    signature: bytes

    def check_hello(self, peer: bytes, hello: Hello) -> None:
        """Check the id of a peer that says HELLO.

        Raises:
            InvalidValue: the id is not valid for a session.
        """
        ...

    def decode(self, frames: Sequence[Frame]) -> Message:
        """Return the message that the frames hold.

        Raises:
            Malformed, TooLarge, UnknownCommand: the frames hold no message.
        """
        ...

    def encode(self, message: Message) -> Sequence[Frame]:
        """Return the frames of a message. The encoded form of a part of a `Delivery` stays in the part."""
        ...


def encode(message: Message) -> list[Frame]:
    """Return the frames of a message: the command and its large records. Ranges are not checked here."""
    if isinstance(message, Delivery):
        return [pack((_DELIVER, message.source, message.after)), *_payload(message.part)]
    spec = BY_TYPE.get(type(message))
    if spec is None:
        assert isinstance(message, PackedAnswer)
        return [_ANSWER + pack(message.ref) + message.value]
    if not spec.frames:
        fields: tuple[Any, ...] = message
        if grown := _GROWN.get(spec.message):
            tail, head, defaults = grown
            fields = fields[head] if fields[tail] == defaults else _without(fields, defaults)
        return [pack((spec.opcode, *fields))]
    if isinstance(message, Deliver):
        return [pack((_DELIVER, message.source, message.after)), message.payload, *message.large]
    return encode_records(spec, message)


def _without(fields: tuple[Any, ...], grown: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out the last fields as far as they have their defaults."""
    for default in reversed(grown):
        if fields[-1] != default:
            break
        fields = fields[:-1]
    return fields


def _payload(part: DeliveryPart) -> Sequence[Frame]:
    """Return the encoded columns of a part, which keeps them for the next call."""
    frames = part.stored or part.encoded.get(VERSION)
    if frames is None:
        payload, large = (pack_queue_payload if part.queued else pack_stream_payload)(part.columns)
        frames = part.encoded[VERSION] = (payload, *large)
    return frames


def encode_records(spec: Spec, message: tuple[Any, ...]) -> list[Frame]:
    """Return the frames of a command with records, by its fields: with or without the value of its class."""
    place = spec.records
    records = message[place]
    is_publish = spec.message is Publish
    if is_publish and not message[-1]:
        message = message[:-1] if message[-2] else message[:-2]
    frame = b""
    if not records or len(records[0]) < RECORD_LARGE_BYTES:
        # Most commands are small as a whole: to look at each record would take as long as packing it.
        frame = (pack_plain if is_publish else pack)((spec.opcode, *message))
        if len(frame) < RECORD_LARGE_BYTES or len(records) <= 1:
            return [frame]
    inline, large = split_large(records)
    if not large:
        return [frame]
    return [pack((spec.opcode, *message[:place], inline, *message[place + 1 :])), *large]


def with_last_fields(frames: Sequence[Frame], *values: Any) -> list[Frame]:
    """Return the frames of a command with other last fields, whose defaults take a byte each."""
    return [b"".join((frames[0][: -len(values)], *map(pack, values))), *frames[1:]]


def decode(frames: Sequence[Frame]) -> Message:
    """Return the message that the frames hold. Raises `Malformed`, `TooLarge` or `UnknownCommand`."""
    if not frames:
        raise Malformed("invalid command: expected at least one frame")
    frame = frames[0]
    if len(frames) > 1:
        return _decode_deliver(frames) if frame[:2] == _DELIVER_BEGINS else _decode(frames)
    form, size_bytes = _FORMS[bytes(frame[:2])], len(frame)
    if form is None or size_bytes > SCANNED_BYTES:
        return _decode(frames)
    try:
        if size_bytes > UNCHECKED_BYTES:
            seen(frame)
        fields = form.decode(frame)
    except (ValueError, RecursionError):
        return _decode(frames)
    if not form.holds(*fields):
        return _decode(frames)
    # As its class would, without a call in Python.
    message: Message = tuple.__new__(form.message, fields[1:] + form.defaults)
    return message


def _decode_deliver(frames: Sequence[Frame]) -> Message:
    try:
        _, source, after = _deliver(frames[0])
    except ValueError:
        return _decode(frames)
    return _made_deliver((source, after, frames[1], tuple(frames[2:])))


class _Form(NamedTuple):
    """A command with a number of its fields, decoded and checked by their types in one pass of C.

    The types are the usual ones of the fields, where a field has one: a command with another value is decoded
    by its rules. `holds` has the conditions beyond the types. Fields that are left out have the `defaults`.
    """

    message: type[Any]
    decode: Callable[[Frame], tuple[Any, ...]]
    holds: Callable[..., bool]
    defaults: tuple[Any, ...]


class _Forms(dict[bytes, _Form | None]):
    """Forms by the first two bytes of a frame, which are the number of fields and the opcode.

    None stands for frames that the rules alone decide about: a value of any type is unpacked with limits on
    the keys of its maps.
    """

    def __missing__(self, beginning: bytes) -> _Form | None:
        spec = BY_OPCODE.get(beginning[1]) if len(beginning) > 1 else None
        count = beginning[0] - _ARRAY - 1 if beginning else 0
        if spec is None or spec.frames == "payload" or not spec.required <= count <= len(spec.rules):
            return None
        self[beginning] = form = _form(spec, spec.rules[:count])
        return form


_FORMS = _Forms()
_ARRAY = 0x90
"""The byte that begins an array, without the number of its items."""


def _form(spec: Spec, rules: Sequence[Rule]) -> _Form | None:
    kinds = (int, *(rule.usual or rule.type for rule in rules))
    if any(map(_has_any_value, kinds)):
        return None
    conditions = [None, *(None if rule.usual else rule.condition for rule in rules)]
    columns = [place + 1 for place in spec.columns if place < len(rules)]
    defaults = spec.message._field_defaults
    return _Form(
        spec.message,
        Decoder(tuple.__class_getitem__(kinds)).decode,
        _all_of(conditions, spec.records + 1, columns),
        tuple(defaults[name] for name in spec.message._fields[len(rules) : len(spec.rules)]),
    )


def _has_any_value(kind: Any) -> bool:
    return kind is Any or any(map(_has_any_value, get_args(kind)))


def _all_of(
    conditions: Sequence[Callable[[Any], bool] | None], records: int = 0, columns: Sequence[int] = ()
) -> Callable[..., bool]:
    """Return the function of all fields that has their conditions: one call, and no loop over them.

    Each of the columns that is there is as long as that of the records.
    """
    terms = [f"len(f{place}) == len(f{records})" for place in columns]
    if _PROPERTIES in columns:
        terms[-1] = f"(f{_PROPERTIES} is None or {terms[-1]})"
    terms += [f"c{place}(f{place})" for place, condition in enumerate(conditions) if condition]
    named = {f"c{place}": condition for place, condition in enumerate(conditions)}
    fields = ", ".join(f"f{place}" for place in range(len(conditions)))
    source = f"lambda {fields}: {' and '.join(terms) or True}"
    made: Callable[..., bool] = eval(compile(source, __file__, "eval"), named)
    return made


_PROPERTIES = 5
"""The place of the column that may be nil, with the opcode in front."""


@cache
def _checked(opcode: int, count: int) -> tuple[Any, Callable[..., bool]]:
    """Return the type of so many fields of a command, and the function of their conditions."""
    rules = BY_OPCODE[opcode].rules[:count]
    # A struct, as msgspec goes through a tuple type anew for each value.
    kinds = defstruct(
        "Fields", ((f"f{place}", rule.type) for place, rule in enumerate(rules)), array_like=True
    )
    return kinds, _all_of([rule.condition for rule in rules])


def _decode(frames: Sequence[Frame]) -> Message:
    """Decode a command whose fields are not all of the usual types, or find the field that is wrong."""
    fields = unpack(frames[0])
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise Malformed("invalid command: expected an array that begins with an opcode")
    spec = BY_OPCODE.get(fields[0])
    if spec is None:
        raise _unknown(fields[0])
    del fields[0]
    if not spec.required <= len(fields) <= len(spec.rules):
        counts = (
            f"{spec.required} to {len(spec.rules)}" if spec.required < len(spec.rules) else f"{spec.required}"
        )
        raise _fault(spec, fields, Malformed(f"{spec.name}: {len(fields)} fields: expected {counts}"))
    kinds, holds = _checked(spec.opcode, len(fields))
    try:
        convert(fields, kinds, builtin_types=_BINARY)
    except ValidationError:
        raise _broken_rule(spec, fields) from None
    if not holds(*fields):
        raise _broken_rule(spec, fields)
    return _with_frames(spec, fields, frames) if spec.frames else _plain(spec, fields, frames)


_BINARY = (bytes,)


def _unknown(opcode: int) -> MalamuteError:
    error = UnknownCommand(f"unknown command {opcode}: expected an opcode of protocol 2")
    error.about = opcode if rule_of(Opcode).holds(opcode) else 0
    return error


def _plain(spec: Spec, fields: list[Any], frames: Sequence[Frame]) -> Message:
    if len(frames) > 1:
        raise _fault(spec, fields, Malformed(f"{spec.name}: {len(frames)} frames: expected 1"))
    message: Message = spec.message(*fields)
    return message


def _with_frames(spec: Spec, fields: list[Any], frames: Sequence[Frame]) -> Message:
    if spec.frames == "payload":
        if len(frames) < 2:
            raise _fault(spec, fields, Malformed(f"{spec.name}: missing payload: expected a second frame"))
        return Deliver(fields[0], fields[1], frames[1], tuple(frames[2:]))
    records = fields[spec.records]
    for place in spec.columns:
        if place < len(fields) and fields[place] and len(fields[place]) != len(records):
            raise _fault(
                spec, fields, Malformed(f"{spec.name}: columns of different lengths: expected one length")
            )
    large = frames[1:]
    if large or None in records:
        if records.count(None) != len(large):
            raise _fault(
                spec,
                fields,
                Malformed(
                    f"{spec.name}: {len(large)} frames for large records: expected {records.count(None)}"
                ),
            )
        fields[spec.records] = join_large(records, large)
    message: Message = spec.message(*fields)
    return message


_DELIVER = BY_TYPE[Deliver].opcode
_DELIVER_BEGINS = pack((_DELIVER, 0, 0))[:2]
_deliver: Callable[[Frame], tuple[int, int, int]] = Decoder(tuple[int, Source, Number]).decode
_made_deliver: Callable[[Sequence[Any]], Deliver] = partial(tuple.__new__, Deliver)
_ANSWER = b"\x93" + pack(BY_TYPE[Answer].opcode)
"""The beginning of an ANSWER, before its ref and its value."""


def _broken_rule(spec: Spec, fields: list[Any]) -> MalamuteError:
    for name, rule, value in zip(spec.message._fields, spec.rules, fields, strict=False):
        if not rule.holds(value):
            if rule.is_over(value):
                return _fault(
                    spec, fields, TooLarge(f"{spec.name}: {name} is too large: expected at most {rule.most}")
                )
            return _fault(
                spec, fields, Malformed(f"{spec.name}: invalid {name}: expected the type {rule.words!r}")
            )
    raise AssertionError("one rule was broken a moment ago")


def _fault(spec: Spec, fields: list[Any], error: MalamuteError) -> MalamuteError:
    error.about = spec.opcode
    ref = fields[spec.ref] if 0 <= spec.ref < len(fields) else 0
    error.ref = ref if rule_of(Ref).holds(ref) else 0
    return error


class Protocol2:
    """The codec of protocol 2, for each peer whose first bytes belong to no other protocol."""

    signature = b""
    decode = staticmethod(decode)
    encode = staticmethod(encode)

    @staticmethod
    def check_hello(peer: bytes, hello: Hello) -> None:
        """Check the routing id, which the client has chosen.

        Raises:
            InvalidValue: the id has not 16 bytes, or begins with 0.
        """
        if len(peer) != ROUTING_ID_BYTES or not peer[0]:
            error = InvalidValue(
                f"invalid routing id: expected {ROUTING_ID_BYTES} random bytes, the first of them not 0"
            )
            error.about, error.ref = BY_TYPE[Hello].opcode, hello.attempt
            raise error


PROTOCOL_2: Codec = Protocol2()
