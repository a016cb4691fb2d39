"""The types of fields: one msgspec type for each, with its name in docs/protocol.md and its bounds.

A command and an admin topic name these types in their annotations, and there is no other definition of
the values of a field. `Beyond` stands beside the bounds in a type and has the condition that msgspec cannot
express: bytes of UTF-8, the order of a range, a value of any plain type. `Rule` is a type as it is applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args

from msgspec import Meta, ValidationError, convert

from malamute.protocol import limits
from malamute.protocol.batch import Frame, is_plain, is_properties
from malamute.protocol.limits import BATCH_MESSAGES_MAX, DURATION_MS_MAX, NUMBER_MAX
from malamute.protocol.names import PLACE_FORM, Kind, is_name

UNLIMITED = -1

ANY_REVISION, NO_REVISION = -1, 0
"""In place of the expected revision of a key: any state of the key, and a key that is not there."""

MESSAGE_STATES = ("pending", "ready", "delayed", "in-flight", "settling", "dead-lettered")
"""The states of a queued message."""

FEED_PREFIX = "$feed/"
"""The beginning of the name of a cursor that is of a feed: the name of the feed follows."""

OPERATIONS = ("copy", "move")
"""The operations of a feed."""

WHENS = ("match", "overflow", "default")
"""When a feed takes a matching message: always, if no consumer of its queue has credit for the message, or if
no other feed of its source takes it."""


class Beyond(NamedTuple):
    """The part of a type that msgspec cannot express.

    `holds` is a condition, `bytes_max` the limit in bytes of UTF-8 of a text or of each text in a list.
    `wire` is the type in a frame where the program has a wider one. `usual` is a narrower type whose values
    need no condition: a frame that has nothing else is decoded and checked in one pass.
    """

    holds: Callable[[Any], bool] | None = None
    bytes_max: int = 0
    wire: Any = None
    usual: Any = None


class Rule(NamedTuple):
    """The check of one field: its name in docs/protocol.md, its msgspec type, and the condition beyond it.

    A value past `items_max` or `bytes_max` is too large; any other value that does not hold is malformed.
    """

    words: str
    expected: str
    type: Any
    condition: Callable[[Any], bool] | None
    usual: Any
    items_max: int
    bytes_max: int

    def holds(self, value: Any) -> bool:
        """Return whether a value is valid for the field."""
        try:
            convert(value, self.type, builtin_types=_BINARY)
        except ValidationError:
            return False
        return self.condition is None or self.condition(value)

    def is_over(self, value: Any) -> bool:
        """Return whether a list has too many items, or a text, also in the list, too many bytes."""
        if type(value) is list:
            return 0 < self.items_max < len(value) or any(map(self._is_long, value))
        return self._is_long(value)

    @property
    def most(self) -> str:
        """Return the limits in words, for an error."""
        counts = {"items": self.items_max, "bytes": self.bytes_max}
        return " of ".join(f"{count} {unit}" for unit, count in counts.items() if count)

    def _is_long(self, value: Any) -> bool:
        if type(value) is bytes:
            return 0 < self.bytes_max < len(value)
        return type(value) is str and 0 < self.bytes_max < len(value.encode())


_BINARY = (bytes,)


@cache
def rule_of(hint: Any) -> Rule:
    """Return the rule of a type of this module."""
    kind, *marks = get_args(hint)
    (meta,) = (mark for mark in marks if isinstance(mark, Meta))
    beyond = next((mark for mark in marks if isinstance(mark, Beyond)), Beyond())
    wire = kind if beyond.wire is None else beyond.wire
    assert meta.title is not None
    return Rule(
        meta.title,
        meta.description or (meta.title if meta.ge is None else f"an integer from {meta.ge} to {meta.le}"),
        _bounded(wire, meta),
        beyond.holds,
        None if beyond.usual is None else _bounded(beyond.usual, meta),
        0 if kind is bytes else meta.max_length or 0,
        beyond.bytes_max,
    )


def _bounded(kind: Any, meta: Meta) -> Any:
    """Return a type with its bounds, which do not concern None."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else ()
    if type(None) in kinds:
        (kind,) = (one for one in kinds if one is not type(None))
        return Annotated[kind, meta] | None
    return Annotated[kind, meta]


# Conditions. Each gets a value that has passed the bounds of its type.


def _fits(text: str, bytes_max: int) -> bool:
    # Four bytes a character is the most that UTF-8 takes, so most texts need no encoding here.
    return len(text) * 4 <= bytes_max or len(text.encode()) <= bytes_max


def _within(bytes_max: int, **more: Any) -> Beyond:
    """Return the limit of a text in bytes; one of a quarter of the characters is within it."""
    usual = Annotated[str, Meta(max_length=bytes_max // 4)]
    return Beyond(partial(_fits, bytes_max=bytes_max), bytes_max, usual=usual, **more)


def _is_address(value: str) -> bool:
    return not value or is_name(value)


def _are_subjects(value: list[str]) -> bool:
    # The bytes of all are counted only if the characters leave it open.
    return max(map(len, value)) * 4 <= limits.SUBJECT_BYTES_MAX or all(
        len(subject.encode()) <= limits.SUBJECT_BYTES_MAX for subject in value
    )


def _are_criteria(value: list[list[Any]]) -> bool:
    return all(type(family) is str and is_plain(pattern) for family, pattern in value)


def _are_ranges(value: list[list[int]]) -> bool:
    return all(first <= last for first, last in value)


def _are_held(value: list[list[int]]) -> bool:
    return not value or _are_ranges(value)


def _are_stored_ranges(value: list[list[int]]) -> bool:
    return not [first for first, last, _ in value if not 1 <= first <= last]


def _is_correlation(value: int | str) -> bool:
    return type(value) is int or _fits(str(value), limits.TEXT_BYTES_MAX)


def _is_path(value: str) -> bool:
    return "\0" not in value and _fits(value, limits.PATH_BYTES_MAX)


def _are_addresses(value: list[str]) -> bool:
    return all(map(_is_address, set(value)))


def _are_urls(value: list[str]) -> bool:
    return all(_fits(url, limits.TEXT_BYTES_MAX) and _URL.fullmatch(url) for url in value)


def _are_ways(value: list[list[list[Any]]]) -> bool:
    return all(
        0 < len(way) <= limits.HOPS_MAX and all([*map(type, hop)] == _HOP for hop in way) for way in value
    )


_URL = re.compile(r"tcp://[^\s/@,]+:[0-9*]{1,5}|ipc://[^\s,]+")
_HOP = [str, str, str, int]


def _is_place(value: str) -> bool:
    kind, _, name = value.partition("/")
    return kind in get_args(Kind) and is_name(name)


def _is_feed(value: str) -> bool:
    return value != "" and is_name(FEED_PREFIX + value)


def _are_names(value: list[str]) -> bool:
    return all(map(is_name, value))


def _are_rules(value: list[str]) -> bool:
    return all(_fits(text, limits.RULE_BYTES_MAX) for text in value)


def _are_key_rows(value: list[list[Any]]) -> bool:
    return all(
        type(key) is str and type(revision) is type(ttl) is int and (body is None or type(body) is bytes)
        for key, revision, body, ttl in value
    )


def _are_properties(value: Any) -> bool:
    return value is None or is_properties(value)


_Sequence = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
_Subject = Annotated[str, Meta(max_length=limits.SUBJECT_BYTES_MAX)]
_ShortSubject = Annotated[str, Meta(max_length=limits.SUBJECT_BYTES_MAX // 4)]
_Range = Annotated[list[_Sequence], Meta(min_length=2, max_length=2)]
_StoredRange = Annotated[
    list[Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]], Meta(min_length=3, max_length=3)
]
_Criterion = Annotated[list[Any], Meta(min_length=2, max_length=2)]
_KeyRow = Annotated[list[Any], Meta(min_length=4, max_length=4)]


def _text(title: str, words: str) -> Meta:
    return Meta(title=title, description=words)


def _bytes(title: str, bytes_max: int) -> Meta:
    return _text(title, f"text of at most {bytes_max} bytes")


def _list(title: str, low: int, high: int, words: str = "") -> Meta:
    return Meta(min_length=low, max_length=high, title=title, description=words or None)


def _column(title: str, words: str = "") -> Meta:
    return _list(title, 1, BATCH_MESSAGES_MAX, words)


# Numbers

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX, title="number")]
NewNumber = Annotated[int, Meta(ge=1, le=NUMBER_MAX, title="new number")]
Position = Annotated[int, Meta(ge=1, le=NUMBER_MAX, title="sequence")]
Ref = Annotated[int, Meta(ge=0, le=NUMBER_MAX, title="ref")]
Source = Annotated[int, Meta(ge=0, le=limits.SOURCE_MAX, title="source")]
NewSource = Annotated[int, Meta(ge=1, le=limits.SOURCE_MAX, title="new source")]
Opcode = Annotated[int, Meta(ge=0, le=127, title="opcode")]
Duration = Annotated[int, Meta(ge=0, le=DURATION_MS_MAX, title="duration")]
Delay = Annotated[int, Meta(ge=-1, le=DURATION_MS_MAX, title="delay")]
CreditCount = Annotated[int, Meta(ge=UNLIMITED, le=NUMBER_MAX, title="credit")]
Expected = Annotated[int, Meta(ge=ANY_REVISION, le=NUMBER_MAX, title="expected revision")]
Amount = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX, title="amount")]
Code = Annotated[int, Meta(ge=100, le=999, title="code")]
Boolean = Annotated[bool, _text("boolean", "true or false")]

# Texts and bytes

_NAME = f"{limits.NAME_BYTES_MAX} bytes with no control characters"
Name = Annotated[str, _text("name", f"a name: text of 1 to {_NAME}"), Beyond(is_name, limits.NAME_BYTES_MAX)]
OtherName = Annotated[
    str,
    _text("other name", f"a name that no rule is about: text of 1 to {_NAME}"),
    Beyond(is_name, limits.NAME_BYTES_MAX),
]
Address = Annotated[
    str, _text("address", f"empty, or a name of at most {_NAME}"), Beyond(_is_address, limits.NAME_BYTES_MAX)
]
Words = Annotated[str, _bytes("words", limits.TEXT_BYTES_MAX), _within(limits.TEXT_BYTES_MAX)]
Token = Annotated[str, _bytes("token", limits.TOKEN_BYTES_MAX), _within(limits.TOKEN_BYTES_MAX)]
Text = Annotated[str, _bytes("long text", limits.WHERE_BYTES_MAX), _within(limits.WHERE_BYTES_MAX)]
QueueKind = Annotated[
    str, _text("kind", "'mailbox' or 'service'"), Beyond(wire=Literal["mailbox", "service"])
]
_WireCorrelation = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)] | str
Correlation = Annotated[
    int | str,
    Meta(title="correlation"),
    Beyond(_is_correlation, limits.TEXT_BYTES_MAX, wire=_WireCorrelation),
]
Binary = Annotated[bytes, _text("binary", "bytes")]
BucketValue = Annotated[
    bytes,
    Meta(
        max_length=limits.VALUE_BYTES_MAX,
        title="value",
        description=f"at most {limits.VALUE_BYTES_MAX} bytes",
    ),
    Beyond(bytes_max=limits.VALUE_BYTES_MAX),
]

# Columns: one item for each message

Subjects = Annotated[
    Sequence[str],
    _column("subjects"),
    Beyond(_are_subjects, limits.SUBJECT_BYTES_MAX, wire=list[_Subject], usual=list[_ShortSubject]),
]
Records = Annotated[Sequence[Frame], _column("records"), Beyond(wire=list[bytes | None], usual=list[bytes])]
Senders = Annotated[Sequence[str], _column("senders"), Beyond(_are_addresses, wire=list[str])]
Finals = Annotated[Sequence[bool], _column("flags"), Beyond(wire=list[bool])]
_INTEGERS = f"a list of 1 to {BATCH_MESSAGES_MAX} integers from 1 to {NUMBER_MAX}"
Positions = Annotated[Sequence[int], _column("sequences", _INTEGERS), Beyond(wire=list[_Sequence])]
# Values that are bytes need the condition: a msgspec type cannot have them beside text.
Properties = Annotated[
    Sequence[Mapping[str, Any] | None] | None,
    _column("properties"),
    Beyond(
        _are_properties,
        wire=list[dict[str, Any] | None] | None,
        usual=list[dict[str, str | int | float | bool | None] | None] | None,
    ),
]

# Lists and maps

_PAIRS = f"a list of 1 to {limits.CRITERIA_MAX} pairs [family, pattern]"
Criteria = Annotated[
    Sequence[Sequence[Any]],
    _list("criteria", 1, limits.CRITERIA_MAX, _PAIRS),
    Beyond(_are_criteria, wire=list[_Criterion]),
]
_Pairs = Sequence[Sequence[int]]
Ranges = Annotated[_Pairs, _list("ranges", 1, limits.RANGES_MAX), Beyond(_are_ranges, wire=list[_Range])]
HeldRanges = Annotated[
    _Pairs, _list("held ranges", 0, limits.RANGES_MAX), Beyond(_are_held, wire=list[_Range])
]
SettledRanges = Annotated[
    _Pairs, _list("settled ranges", 0, limits.SETTLED_MAX), Beyond(_are_ranges, wire=list[_Range])
]
StoredRanges = Annotated[
    _Pairs,
    _list("stored ranges", 1, limits.ITEMS_MAX),
    Beyond(_are_stored_ranges, wire=list[_StoredRange]),
]
Versions = Annotated[Sequence[int], _list("versions", 1, limits.VERSIONS_MAX), Beyond(wire=list[_Sequence])]
Map = Annotated[Mapping[str, Any], Meta(title="map"), Beyond(is_plain, wire=dict[str, Any])]
Keys = Annotated[
    Sequence[str],
    _list("keys", 1, limits.KEYS_MAX, f"a list of 1 to {limits.KEYS_MAX} names"),
    Beyond(_are_names, limits.NAME_BYTES_MAX, wire=list[str]),
]
KeyRows = Annotated[
    Sequence[Sequence[Any]],
    _list("rows of keys", 1, limits.KEYS_MAX, "a list of rows [key, revision, value or nil, ttl]"),
    Beyond(_are_key_rows, wire=list[_KeyRow]),
]
LimitCounts = Annotated[Mapping[str, int], Meta(title="limits"), Beyond(wire=dict[str, Number])]
AnyValue = Annotated[Any, Meta(title="any value"), Beyond(is_plain)]

# Arguments of QUERY and CHANGE

RowCount = Annotated[int, Meta(ge=1, le=limits.ROWS_MAX, title="rows")]
Uid = Annotated[int, Meta(ge=0, le=limits.UID_MAX, title="uid")]
_AGE = f"a finite number from 0 to {limits.AGE_SECONDS_MAX}"
AgeSeconds = Annotated[float, Meta(ge=0, le=limits.AGE_SECONDS_MAX, title="seconds", description=_AGE)]
_DELAYS = f"a list of at most {limits.DELAYS_MAX} numbers from 0 to {limits.AGE_SECONDS_MAX}"
Delays = Annotated[
    Sequence[float],
    _list("delays", 0, limits.DELAYS_MAX, _DELAYS),
    Beyond(wire=list[Annotated[float, Meta(ge=0, le=limits.AGE_SECONDS_MAX)]]),
]
Subject = Annotated[str, _bytes("subject", limits.SUBJECT_BYTES_MAX), _within(limits.SUBJECT_BYTES_MAX)]
_PATH = f"a path of 1 to {limits.PATH_BYTES_MAX} bytes without NUL"
Path = Annotated[
    str, Meta(min_length=1, title="path", description=_PATH), Beyond(_is_path, limits.PATH_BYTES_MAX)
]
MessageState = Annotated[
    str, _text("state", f"one of {', '.join(MESSAGE_STATES)}"), Beyond(wire=Literal[("", *MESSAGE_STATES)])
]
_HEADERS = f"a map of at most {limits.HEADERS_MAX} texts to a str, int, float, bool or nil each"
Headers = Annotated[
    Mapping[str, Any],
    _list("headers", 0, limits.HEADERS_MAX, _HEADERS),
    Beyond(wire=dict[str, str | int | float | bool | None]),
]
Names = Annotated[
    Sequence[str],
    _list("names", 0, limits.GROUPS_MAX, f"a list of at most {limits.GROUPS_MAX} names"),
    Beyond(_are_names, limits.NAME_BYTES_MAX, wire=list[str]),
]
_RULES = f"a list of at most {limits.RULES_MAX} texts of at most {limits.RULE_BYTES_MAX} bytes"
RuleTexts = Annotated[
    Sequence[str],
    _list("rules", 0, limits.RULES_MAX, _RULES),
    Beyond(_are_rules, limits.RULE_BYTES_MAX, wire=list[str]),
]
_HASH = f"a password as `malamute user` hashes it: at most {limits.TEXT_BYTES_MAX} bytes"
PasswordHash = Annotated[str, _text("password hash", _HASH), _within(limits.TEXT_BYTES_MAX)]
_PLACE_BYTES_MAX = len("mailbox/") + limits.NAME_BYTES_MAX
Place = Annotated[str, _text("place", PLACE_FORM), Beyond(_is_place, _PLACE_BYTES_MAX)]
_FEED_BYTES_MAX = limits.NAME_BYTES_MAX - len(FEED_PREFIX)
_FEED = f"text of 1 to {_FEED_BYTES_MAX} bytes with no control characters"
FeedName = Annotated[str, _text("feed", _FEED), Beyond(_is_feed, _FEED_BYTES_MAX)]
_URLS = f"a list of 1 to {limits.URLS_MAX} URLs such as tcp://HOST:9999, without a user or a password"
Urls = Annotated[
    Sequence[str],
    _list("urls", 1, limits.URLS_MAX, _URLS),
    Beyond(_are_urls, limits.TEXT_BYTES_MAX, wire=list[str]),
]
PairUrls = Annotated[
    Sequence[str],
    _list("urls of a pair", 0, limits.URLS_MAX, _URLS.replace("1 to", "at most")),
    Beyond(_are_urls, limits.TEXT_BYTES_MAX, wire=list[str]),
]
_WAYS = (
    f"a list of at most {limits.WAYS_MAX} ways of 1 to {limits.HOPS_MAX} hops "
    "[broker, stream, link, generation]"
)
Ways = Annotated[
    Sequence[Sequence[Sequence[Any]]],
    _list("ways", 0, limits.WAYS_MAX, _WAYS),
    Beyond(_are_ways, wire=list[list[Annotated[list[Any], Meta(min_length=4, max_length=4)]]]),
]
FeedOperation = Annotated[
    str, _text("operation", f"one of {', '.join(OPERATIONS)}"), Beyond(wire=Literal[OPERATIONS])
]
FeedWhen = Annotated[str, _text("when", f"one of {', '.join(WHENS)}"), Beyond(wire=Literal[WHENS])]
