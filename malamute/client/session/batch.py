"""Messages before their command: packed one by one on arrival, shipped as columns.

Packing is the hottest path of a publisher, so a message costs one call of the packer, its checks, and two
appends. Invalid messages are refused here, where each is known: the broker refuses whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, repeat
from typing import Any, cast

from malamute.errors import InvalidValue, TooLarge
from malamute.protocol.batch import Body, Frame, Headers, pack_plain
from malamute.protocol.limits import SUBJECT_BYTES_MAX
from malamute.protocol.texts import shown

BATCH_BYTES = 64 * 1024
"""Bytes of records with which a batch is shipped."""

_HEADER_TYPES = frozenset({str, int, float, bool, type(None)})
_SUBJECT_SAFE = SUBJECT_BYTES_MAX // 4
_BYTES = frozenset({bytes})
_TEXT = frozenset({str})

_ASSURANCES = {"none": False, "stored": True}


def is_stored(assurance: str) -> bool:
    """Return whether this assurance asks for a confirmation. Raises `InvalidValue` for an unknown one."""
    try:
        return _ASSURANCES[assurance]
    except (KeyError, TypeError):
        known = " or ".join(_ASSURANCES)
        raise InvalidValue(f"invalid assurance {shown(assurance)}: expected {known}") from None


def record_of(headers: Headers | None, body: Body) -> bytes:
    """Pack headers and body. Raises `InvalidValue` for an invalid header or body."""
    try:
        if headers:
            for name, value in headers.items():
                if type(value) not in _HEADER_TYPES or type(name) is not str:
                    return _odd_record(headers, body)
        if type(body) is bytes:
            return pack_plain((headers or None, body))
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass  # the error is raised below, with the cause
    return _odd_record(headers, body)


def _odd_record(headers: Headers | None, body: Body) -> bytes:
    """Pack values of derived types, or raise the error with the cause."""
    plain, frames = _plain_headers(headers), _frames(body)
    try:
        return pack_plain((plain or None, *frames))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue(
            f"invalid headers {shown(plain)}: expected text that has a form in UTF-8, and numbers of at most "
            f"64 bits ({type(error).__name__})"
        ) from error


def _plain_headers(headers: Headers | None) -> dict[str, Any]:
    """Return headers as a map of plain types. Values of derived classes mean the same."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidValue(f"invalid headers {shown(headers)}: expected a mapping, such as {{'unit': 'C'}}")
    return {_header_name(name): _header_value(name, value) for name, value in headers.items()}


def _header_name(name: Any) -> str:
    if isinstance(name, str):
        return str.__str__(name)
    raise InvalidValue(f"invalid name of a header {shown(name)}: expected text")


def _header_value(name: str, value: Any) -> Any:
    if value is None or type(value) is bool:
        return value
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    raise InvalidValue(
        f"invalid header {shown(name)}: {shown(value)}: expected text with a str, int, float, bool or None"
    )


_PLAIN: Sequence[tuple[type[Any], Callable[[Any], Any]]] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__float__),
)


def _frames(body: Any) -> list[bytes]:
    if isinstance(body, bytes | bytearray | memoryview):
        return [bytes(body)]
    if isinstance(body, str):
        try:
            return [body.encode()]
        except UnicodeEncodeError as error:
            raise InvalidValue(
                f"invalid body {shown(body)}: expected text that has a form in UTF-8"
            ) from error
    try:
        # The keys of a mapping are no frames, even if there are none.
        frames = [body] if isinstance(body, Mapping | Set) else list(body)
    except TypeError:
        frames = [body]
    if not all(isinstance(frame, bytes | bytearray | memoryview) for frame in frames):
        raise InvalidValue(
            f"invalid body {shown(body)}: expected bytes, text, or a sequence of bytes; "
            "json= and a codec take other values"
        )
    return [bytes(frame) for frame in frames]


def check_subject(subject: str) -> str:
    """Return a subject as plain text. Raises `InvalidValue` or `TooLarge` for an invalid one."""
    if type(subject) is not str:
        if not isinstance(subject, str):
            raise InvalidValue(f"invalid subject {shown(subject)}: expected text")
        subject = str.__str__(subject)
    if len(subject) <= _SUBJECT_SAFE and subject.isascii():
        return subject
    try:
        size_bytes = len(subject.encode())
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"invalid subject {shown(subject)}: expected text that has a form in UTF-8"
        ) from error
    if size_bytes > SUBJECT_BYTES_MAX:
        raise TooLarge(f"subject {shown(subject)} is too large: expected at most {SUBJECT_BYTES_MAX} bytes")
    return subject


def records_of(headers_list: Sequence[Headers | None] | None, bodies: Sequence[Body]) -> list[bytes]:
    """Pack many at once; `headers_list` is None when there are no headers. Raises `InvalidValue`."""
    if not _BYTES.issuperset(map(type, bodies)) or not _are_plain(headers_list or ()):
        return [*map(record_of, headers_list or repeat(None), bodies)]
    try:
        return [*map(pack_plain, zip(headers_list or repeat(None), bodies, strict=False))]
    except (TypeError, ValueError, OverflowError):
        # One by one, to find the invalid one.
        return [*map(record_of, headers_list or repeat(None), bodies)]


def _are_plain(headers_list: Sequence[Headers | None]) -> bool:
    # Three passes in C over columns that are nearly always right; the slow way finds an error.
    if not {dict}.issuperset(map(type, headers_list)):
        return False
    maps = cast("Sequence[dict[str, Any]]", headers_list)
    values, names = chain.from_iterable(map(dict.values, maps)), chain.from_iterable(maps)
    return _HEADER_TYPES.issuperset(map(type, values)) and _TEXT.issuperset(map(type, names))


def check_subjects(subjects: Sequence[str]) -> Sequence[str]:
    """Return subjects as plain text. Raises `InvalidValue` or `TooLarge` for an invalid one."""
    # As in `_are_plain`: passes in C over subjects that are nearly always right.
    if _TEXT.issuperset(map(type, subjects)) and (
        max(map(len, subjects), default=0) <= _SUBJECT_SAFE and all(map(str.isascii, subjects))
    ):
        return subjects
    return [*map(check_subject, subjects)]


def check_columns(*columns: Sequence[Any] | None) -> None:
    """Raise `InvalidValue` unless the arguments are columns of one length; None stands for none."""
    try:
        lengths = {len(column) for column in columns if column is not None}
    except TypeError:
        lengths = set()
    if len(lengths) != 1:
        raise InvalidValue(
            "invalid columns: expected lists of subjects, of bodies and of headers, all of one length"
        )


class Batch:
    """Messages that are not shipped yet."""

    __slots__ = (
        "_full_bytes",
        "apart",
        "full",
        "last",
        "most",
        "most_bytes",
        "records",
        "size_bytes",
        "subjects",
    )

    def __init__(self, most: int, most_bytes: int) -> None:
        """Limit the batch to `most` messages, and each message to `most_bytes`."""
        self.most = most
        self.most_bytes = most_bytes
        self._full_bytes = min(BATCH_BYTES, most_bytes)
        self.subjects: list[str] = []
        self.records: list[Frame] = []
        self.size_bytes = 0
        self.full = False
        """Whether the batch is to be shipped."""
        self.last = most == 1
        """Whether one more message makes the batch full, or more than that."""
        self.apart = False
        """Whether the last message goes as a command of its own: with the others it would be too large."""

    def add(self, subject: str, body: Body, headers: Headers | None) -> int:
        """Add a message, and return its place. Raises `InvalidValue` or `TooLarge`, and adds nothing then."""
        if type(subject) is not str or len(subject) > _SUBJECT_SAFE or not subject.isascii():
            subject = check_subject(subject)
        record = record_of(headers, body)
        records = self.records
        place = len(records)
        size_bytes = self.size_bytes + len(record)
        if place + 2 >= self.most or size_bytes >= self._full_bytes:
            if len(record) > self.most_bytes:
                raise TooLarge(
                    f"message of {len(record)} bytes is too large: expected at most {self.most_bytes}"
                )
            self.last = True
            self.apart = place > 0 and size_bytes > self.most_bytes
            self.full = size_bytes >= self._full_bytes or place + 1 >= self.most
        self.subjects.append(subject)
        records.append(record)
        self.size_bytes = size_bytes
        return place

    def pop(self) -> tuple[list[str], list[Frame]]:
        """Return the subjects and records, and empty the batch."""
        taken = self.subjects, self.records
        self.subjects, self.records, self.size_bytes = [], [], 0
        self.full, self.last, self.apart = False, self.most == 1, False
        return taken


def split_evenly(
    subjects: Sequence[str], records: Sequence[Frame], most: int, most_bytes: int
) -> Iterable[tuple[Sequence[str], Sequence[Frame]]]:
    """Cut long columns into commands of `most` messages and `most_bytes` at most."""
    start = size_bytes = 0
    for place, record in enumerate(records):
        if start < place and size_bytes + len(record) > most_bytes:
            yield subjects[start:place], records[start:place]
            start, size_bytes = place, 0
        size_bytes += len(record)
        if size_bytes >= BATCH_BYTES or place + 1 - start >= most:
            yield subjects[start : place + 1], records[start : place + 1]
            start, size_bytes = place + 1, 0
    if start < len(records):
        yield subjects[start:], records[start:]
