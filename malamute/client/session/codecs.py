"""Codecs: values of a program as the bodies of messages, and back.

A message says by its header `content-type` what its body is, so that programs in other languages read it.
Bytes and text are sent as they are, and have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar, Literal, Protocol, get_origin, is_typeddict

from msgspec import Struct, convert, json, msgpack

from malamute.errors import InvalidValue
from malamute.protocol.batch import Body, Headers
from malamute.protocol.texts import shown

CONTENT_TYPE = "content-type"

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""The default of `json`, as None is a value."""


class DataclassValue(Protocol):
    """A value of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelValue(Protocol):
    """A model of pydantic."""

    @property
    def model_dump(self) -> Callable[..., Any]:
        """Return the method that returns the fields."""


Content = Body | Struct | DataclassValue | ModelValue | Mapping[str, Any] | Sequence[Any]
"""The body of a message: bytes, text, or a sequence of bytes; with a codec another value, too."""


class BodyCodec(Protocol):
    """A form of values in bodies. Both methods may raise `ValueError` and `TypeError`."""

    content_type: str
    """The value of the header `content-type`, such as `application/x-protobuf`."""

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a value."""
        ...

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value of a body, as one of a type."""
        ...


class JsonCodec:
    """JSON, as msgspec writes and reads it, with dataclasses, times, and models of pydantic."""

    content_type = "application/json"

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a value."""
        return json.encode(value, enc_hook=_of_model)

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value of a body, as one of a type."""
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(body)
        return json.decode(body, type=kind)


class MsgpackCodec:
    """MessagePack, of the same values."""

    content_type = "application/msgpack"

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a value."""
        return msgpack.encode(value, enc_hook=_of_model)

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value of a body, as one of a type."""
        value = msgpack.decode(body)
        return kind.model_validate(value) if hasattr(kind, "model_validate") else convert(value, kind)


def _of_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no form in JSON")


JSON = JsonCodec()
CODECS: Mapping[str, BodyCodec] = {"json": JSON, "msgpack": MsgpackCodec()}
"""The codecs that have a name."""

CodecOption = BodyCodec | Literal["json", "msgpack"] | None


def codec_of(codec: CodecOption) -> BodyCodec | None:
    """Return the codec of an option. Raises `InvalidValue` for an unknown one."""
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec in CODECS:
            return CODECS[codec]
    elif isinstance(getattr(codec, "content_type", None), str) and hasattr(codec, "decode"):
        return codec
    raise InvalidValue(
        f"invalid codec {shown(codec)}: expected {', '.join(map(repr, CODECS))}, or a codec with a "
        "content_type, encode and decode"
    )


def content_of(
    codec: BodyCodec | None, json: Any, body: Any, headers: Headers | None
) -> tuple[Body, Headers | None]:
    """Return the body to send, and its headers: of `json`, or of a value that needs the codec.

    Raises:
        InvalidValue: There is a body beside `json`, or the value has no form.
    """
    if json is not ABSENT:
        if type(body) is not bytes or body:
            raise InvalidValue("invalid message with json and a body: expected one of them")
        return _encoded(JSON, json, headers)
    if codec is None or _is_plain(body):
        return body, headers
    return _encoded(codec, body, headers)


def _is_plain(body: Any) -> bool:
    if isinstance(body, list | tuple) and body:
        return all(isinstance(frame, bytes | bytearray | memoryview) for frame in body)
    return isinstance(body, bytes | bytearray | memoryview | str)


def _encoded(codec: BodyCodec, value: Any, headers: Headers | None) -> tuple[Body, Headers]:
    try:
        body = codec.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValue(f"invalid {_name_of(codec)} {shown(value)}: {error}") from error
    return body, {CONTENT_TYPE: codec.content_type, **(headers or {})}


def decoded(body: bytes, kind: Any, codecs: Sequence[BodyCodec], content_type: object) -> Any:
    """Return the value of a body by the codec of its content type; without one, by the first of the codecs.

    Raises:
        InvalidValue: The body is of another content type, or no value of this type.
    """
    known = {codec.content_type: codec for codec in reversed((*codecs, *CODECS.values()))}
    name = str(content_type).partition(";")[0].strip().lower() if content_type else codecs[0].content_type
    if name not in known:
        raise InvalidValue(f"content type {name!r} is unknown: expected {', '.join(sorted(known))}")
    try:
        return known[name].decode(body, kind)
    except (ValueError, TypeError) as error:
        raise InvalidValue(str(error)) from error


_PLAIN = (bool, dict, float, int, list, set, tuple)


def is_model(kind: Any) -> bool:
    """Return whether a type is one of values that a codec makes of a body."""
    if kind in _PLAIN or get_origin(kind) in _PLAIN or is_typeddict(kind):
        return True
    return isinstance(kind, type) and (
        is_dataclass(kind) or issubclass(kind, Struct) or hasattr(kind, "model_validate_json")
    )


def _name_of(codec: BodyCodec) -> str:
    return codec.content_type.rpartition("/")[2]
