"""The messages of protocol 2: every command with its number, its fields and their ranges.

A message is an immutable value. On the wire it is a msgpack array `[opcode, field, …]`, in the order of
the class. `SPECS` is the whole protocol as one table; the codec, the tests and docs/protocol.md follow it.
Fields from a spec's `required` on may be left out and then have the default of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import call
from typing import Any, NamedTuple

from malamute.errors import MalamuteError
from malamute.protocol import limits
from malamute.protocol.batch import is_plain, is_properties
from malamute.protocol.names import is_name
from malamute.protocol.part import DeliveryPart

Frame = bytes | memoryview
Ranges = Sequence[Sequence[int]]

VERSION = 2
MAILBOX = 0
"""The source id of a session's own mailbox. Subscriptions and offers have ids from 1."""
UNLIMITED = -1


class Hello(NamedTuple):
    """The first command of every connection. `unsettled` is the lowest number still without an answer.

    `settled` are ranges of numbers above it that have theirs: a broker that was killed may have forgotten
    those that it refused.
    `attempt` counts the HELLOs of a client; the answer repeats it, and one to an earlier HELLO is told apart.
    `heartbeat` is after how many milliseconds at the most something comes, if only a ZMTP heartbeat; 0 is no
    promise.
    `token` proves who the client is, where the connection does not: a bearer token, or a user and a password
    (`passwords.pack_login`). It is a secret, and is never shown.
    `act_as` is the user that the session is to be of, if not the one that is proved.
    A `signed` session publishes with its user as the sender, and not with its address: see `signature`.
    """

    versions: Sequence[int]
    address: str
    software: str = ""
    unsettled: int = 1
    attempt: int = 0
    heartbeat: int = 0
    settled: Ranges = []  # what is decoded is a list
    token: str = ""
    act_as: str = ""
    signed: bool = False

    def __repr__(self) -> str:
        shown = {name: repr(value) for name, value in self._asdict().items()}
        shown["token"] = "…"
        left_out = {name for name in ("token", "act_as", "signed") if not getattr(self, name)}
        return f"Hello({', '.join(f'{name}={shown[name]}' for name in self._fields if name not in left_out)})"


class Publish(NamedTuple):
    """Publish messages to a stream. With a number other than 0 they are confirmed by STORED.

    They expire `ttl` milliseconds after the broker has accepted them; 0 is never.
    """

    stream: str
    number: int
    subjects: Sequence[str]
    records: Sequence[Frame]
    ttl: int = 0


class Send(NamedTuple):
    """Send messages to a mailbox, whether its owner is there or not."""

    address: str
    number: int
    subjects: Sequence[str]
    records: Sequence[Frame]
    properties: Sequence[Mapping[str, Any] | None] | None = None


class Request(NamedTuple):
    """Ask a service. The replies come to the mailbox of the requester.

    `acks` acknowledges deliveries of that mailbox, as by an ACK before it, whatever becomes of the request.
    """

    service: str
    number: int
    subjects: Sequence[str]
    records: Sequence[Frame]
    properties: Sequence[Mapping[str, Any] | None] | None = None
    acks: Ranges = []  # what is decoded is a list


class Reply(NamedTuple):
    """Answer requests of an offer. A final reply completes its request and gives no credit back by itself.

    `credit` and `credit_bytes` are granted to the offer, as by a CREDIT behind it, whatever becomes of the
    reply; 0 and 0 grant nothing.
    """

    source: int
    number: int
    sequences: Sequence[int]
    finals: Sequence[bool]
    records: Sequence[Frame]
    credit: int = 0
    credit_bytes: int = 0


class Subscribe(NamedTuple):
    """Subscribe to a stream. A message that meets any of the criteria, and `where`, comes once.

    With a cursor that the broker knows it begins behind it; one that is new is set to `start`. `had` is the
    last message that came before, on an older connection: GAP tells if the broker has lost it since. What is
    `committed` is on the disk before it is delivered. Of an `existing` stream alone: it makes none. One that
    stood before names in `resume` the position up to which it has had everything, `N@STORE`: it goes on
    there if that is a position in this broker's store. Otherwise it begins anew, and GAP reports that.
    """

    source: int
    stream: str
    criteria: Sequence[Sequence[Any]]
    where: str = ""
    start: str = "new"
    credit: int = 0
    credit_bytes: int = UNLIMITED
    cursor: str = ""
    had: int = 0
    committed: bool = False
    existing: bool = False
    resume: str = ""


class Offer(NamedTuple):
    """Offer to work for a service, on requests whose subject meets any of the criteria.

    Of the kind `mailbox` it is an offer to receive from the mailbox of this name, beside its owner and
    others, and the criteria are of the address of the sender. What is not settled or reported on within
    `ack_timeout` milliseconds is taken back; 0 is what the broker is configured for.
    """

    source: int
    service: str
    criteria: Sequence[Sequence[Any]]
    credit: int = 0
    credit_bytes: int = UNLIMITED
    ack_timeout: int = 0
    kind: str = "service"


class Cancel(NamedTuple):
    """End a subscription or an offer. Unfinished requests go back to the queue."""

    source: int


class Credit(NamedTuple):
    """Allow more deliveries from a source, beyond what was allowed before. -1 is without limit."""

    source: int
    messages: int
    bytes: int = 0


class Ack(NamedTuple):
    """Acknowledge deliveries of the mailbox or of an offer by ranges of their sequences.

    `credit` and `credit_bytes` are granted to the source, as by a CREDIT behind it, whatever becomes of the
    ranges; 0 and 0 grant nothing.
    """

    source: int
    ranges: Ranges
    credit: int = 0
    credit_bytes: int = 0


class Nak(NamedTuple):
    """Give deliveries back, to be delivered again after `delay` milliseconds; -1 is by the backoff."""

    source: int
    ranges: Ranges
    delay: int = -1


class Reject(NamedTuple):
    """Refuse deliveries for good: they become dead letters, with the reason.

    To `bounce` them is to give those of a mailbox back to their senders.
    """

    source: int
    ranges: Ranges
    reason: str = ""
    bounce: bool = False


class Progress(NamedTuple):
    """Report that deliveries are still worked on: their time to be acknowledged begins anew."""

    source: int
    ranges: Ranges


class Release(NamedTuple):
    """Give deliveries back untouched: it does not count as an attempt."""

    source: int
    ranges: Ranges


class Drain(NamedTuple):
    """Stop the deliveries of a source, and take back untouched all that is outstanding and not `held`.

    OK says that nothing more comes, before more credit is granted.
    """

    source: int
    held: Ranges


class Withdraw(NamedTuple):
    """Take back what was sent or asked by this session's address under a correlation, and is not settled."""

    ref: int
    kind: str
    name: str
    correlation: int | str


class Query(NamedTuple):
    """Ask the broker about itself."""

    ref: int
    topic: str
    arguments: Mapping[str, Any]


class Ping(NamedTuple):
    """Are you there? The broker answers PONG. A client answers RECEIVED if there is a token."""

    token: int = 0


class Received(NamedTuple):
    """The client has taken the PING with this token, and all that came before it, from its socket."""

    token: int


class Bye(NamedTuple):
    """End the session: what it holds goes back to the queues, and it cannot be resumed."""


class Commit(NamedTuple):
    """Set a named position of a stream: the reader is done with everything up to `sequence`.

    A sequence that is not of this broker's store is refused, if `store` names the one that it is of.
    """

    stream: str
    number: int
    cursor: str
    sequence: int
    store: str = ""


class Change(NamedTuple):
    """Change something in the broker. Under a number it is made once; OK has what it came to."""

    number: int
    topic: str
    arguments: Mapping[str, Any]


class Welcome(NamedTuple):
    """The answer to HELLO. `resumed` tells that the broker still knew the session.

    Beside the limits there is the `ack_timeout` for the session's mail, in milliseconds. `attempt` is that of
    the HELLO that is answered. `incarnation` is another number when the broker was restored from a backup
    since. `user` is whose the session is, as the broker found out; empty for nobody's.
    """

    version: int
    session: bytes
    broker: bytes
    resumed: bool
    software: str
    limits: Mapping[str, int]
    attempt: int = 0
    incarnation: int = 0
    user: str = ""


class Ok(NamedTuple):
    """The command `about` with this `ref` is done.

    For SUBSCRIBE, `value` is the first sequence; for OFFER, the ack timeout in force, in milliseconds; for
    CHANGE, what it did.
    """

    about: int
    ref: int
    value: Any = None


class Error(NamedTuple):
    """The command `about` with this `ref` was refused and changed nothing. 0 means not known.

    The same command would not be refused for this reason after `retry_after` milliseconds; 0 is not known.
    """

    code: int
    text: str
    about: int = 0
    ref: int = 0
    retry_after: int = 0


class Stored(NamedTuple):
    """Commands are on the disk: ranges `[first number, last number, first sequence]`."""

    ranges: Ranges


class Deliver(NamedTuple):
    """Messages from a source, as they come in. `after` is the last sequence that the delivery before had."""

    source: int
    after: int
    payload: Frame
    large: Sequence[Frame] = ()


class Delivery(NamedTuple):
    """The same as they go out: nobody has encoded them yet, or somebody has, and left that in the part."""

    source: int
    after: int
    part: DeliveryPart


class Gap(NamedTuple):
    """The messages of a subscription from `first` to `last` are unavailable, and why.

    Up to the last message that came, it is of those that the subscription has had: they are no more. With the
    reason `another-store` it begins anew behind `last`, which may be 0.
    """

    source: int
    first: int
    last: int
    reason: str


RESTART, NOT_STORED, OVERWRITTEN, NO_JOURNAL = "restart", "not-stored", "overwritten", "no-journal"
TAKEN_BACK = "taken-back"
"""The reason of a gap in what was delivered before it was on the disk, and never came there."""
RESTORED = "restored"
"""The reason of a gap between a backup and what came when it was restored. Anything may have been there."""
EXPIRED = "expired"
"""The reason of a gap in which every message that the subscription would have got has expired."""
ANOTHER_STORE = "another-store"
"""The reason of a gap in front of a subscription whose position was one in another store.

It has the messages of this store that lie before the place where the subscription begins anew; there may be
none."""
GAP_REASONS = (RESTART, NOT_STORED, OVERWRITTEN, NO_JOURNAL, TAKEN_BACK, RESTORED, EXPIRED, ANOTHER_STORE)
"""All reasons of gaps."""

HARMLESS = frozenset((RESTART, NOT_STORED))
"""Reasons of gaps in which nothing was that its publisher had confirmed."""


class Switch(NamedTuple):
    """A subscription is now `live` or in `replay`, from this sequence on.

    One that is `limited` from its beginning on has not all that was asked for: the rules allow a part of it.
    """

    source: int
    state: str
    sequence: int


LIMITED = "limited"
"""The state of a subscription that has a part of what was asked for."""


class Answer(NamedTuple):
    """The answer to a QUERY."""

    ref: int
    value: Any


class PackedAnswer(NamedTuple):
    """An ANSWER whose value is packed already: its maker had to know how large it is."""

    ref: int
    value: bytes


class Pong(NamedTuple):
    """The answer to PING."""


class Recall(NamedTuple):
    """Deliveries of a source are no longer the receiver's: `timeout`, `expired`, `withdrawn`, `purged`."""

    source: int
    ranges: Ranges
    reason: str


Message = (
    Hello
    | Publish
    | Send
    | Request
    | Reply
    | Subscribe
    | Offer
    | Cancel
    | Credit
    | Ack
    | Nak
    | Reject
    | Progress
    | Release
    | Drain
    | Withdraw
    | Query
    | Ping
    | Received
    | Bye
    | Commit
    | Change
    | Welcome
    | Ok
    | Error
    | Stored
    | Deliver
    | Delivery
    | Gap
    | Switch
    | Answer
    | Pong
    | PackedAnswer
    | Recall
)


class Rule(NamedTuple):
    """What a field may hold: its type in the words of docs/protocol.md, and the check.

    `items_max` and `bytes_max` are its limits, where it has any: a value that goes past them is too
    large, every other value that does not hold is malformed.
    """

    words: str
    holds: Callable[[Any], bool]
    items_max: int = 0
    bytes_max: int = 0

    def is_over(self, value: Any) -> bool:
        """Whether a list has too many items, or a text or a text in the list too many bytes."""
        if type(value) is list:
            return 0 < self.items_max < len(value) or any(map(self._is_long, value))
        return self._is_long(value)

    @property
    def most(self) -> str:
        """The limits in words, for an error."""
        counts = {"items": self.items_max, "bytes": self.bytes_max}
        return " of ".join(f"{count} {unit}" for unit, count in counts.items() if count)

    def _is_long(self, value: Any) -> bool:
        return type(value) is str and 0 < self.bytes_max < len(value.encode())


# Made once: a literal in a check would be made again for each command.
_RECORDS: frozenset[type] = frozenset((bytes, type(None)))


def _integer(words: str, low: int, high: int) -> Rule:
    return Rule(words, lambda value: type(value) is int and low <= value <= high)


def _text(words: str, bytes_max: int) -> Rule:
    return Rule(words, lambda value: type(value) is str and _fits(value, bytes_max), bytes_max=bytes_max)


def _fits(text: str, bytes_max: int) -> bool:
    # Four bytes a character is the most that UTF-8 takes, so most texts need no encoding here.
    return len(text) * 4 <= bytes_max or len(text.encode()) <= bytes_max


def _list(words: str, items_max: int, check: Callable[[list[Any]], bool], bytes_max: int = 0) -> Rule:
    return Rule(
        words,
        lambda value: type(value) is list and 0 < len(value) <= items_max and check(value),
        items_max,
        bytes_max,
    )


def _column(words: str, check: Callable[[list[Any]], bool], bytes_max: int = 0) -> Rule:
    return _list(words, limits.BATCH_MESSAGES_MAX, check, bytes_max)


def _are_subjects(value: list[Any]) -> bool:
    try:
        # Joining looks at the types of all, and is the cheapest way to do so.
        if len("".join(value)) * 4 <= limits.SUBJECT_BYTES_MAX:
            return True
    except TypeError:
        return False
    return max(map(len, value)) * 4 <= limits.SUBJECT_BYTES_MAX or all(
        _fits(subject, limits.SUBJECT_BYTES_MAX) for subject in value
    )


def _are_records(value: list[Any]) -> bool:
    return _RECORDS.issuperset(map(type, value))


def _are_flags(value: list[Any]) -> bool:
    return {bool}.issuperset(map(type, value))


def _are_integers(value: list[Any], low: int) -> bool:
    return {int}.issuperset(map(type, value)) and low <= min(value) <= max(value) <= limits.NUMBER_MAX


def _are_criteria(value: list[Any]) -> bool:
    return all(
        type(item) is list and len(item) == 2 and type(item[0]) is str and is_plain(item[1]) for item in value
    )


def _are_ranges(value: list[Any]) -> bool:
    return all(
        type(item) is list and len(item) == 2 and _are_integers(item, 1) and item[0] <= item[1]
        for item in value
    )


def _are_stored_ranges(value: list[Any]) -> bool:
    return all(
        type(item) is list and len(item) == 3 and _are_integers(item, 0) and 1 <= item[0] <= item[1]
        for item in value
    )


_is_properties_column = _column("properties", is_properties).holds

NAME = Rule("name", lambda value: type(value) is str and is_name(value), bytes_max=limits.NAME_BYTES_MAX)
ADDRESS = Rule("address", lambda value: value == "" or NAME.holds(value), bytes_max=limits.NAME_BYTES_MAX)
NUMBER = _integer("number", 0, limits.NUMBER_MAX)
SEQUENCE = _integer("sequence", 1, limits.NUMBER_MAX)
REF = _integer("ref", 0, limits.NUMBER_MAX)
SOURCE = _integer("source", 0, limits.SOURCE_MAX)
NEW_SOURCE = _integer("new source", 1, limits.SOURCE_MAX)
OPCODE = _integer("opcode", 0, 127)
DURATION = _integer("duration", 0, limits.DURATION_MS_MAX)
DELAY = _integer("delay", -1, limits.DURATION_MS_MAX)
CREDIT = _integer("credit", UNLIMITED, limits.NUMBER_MAX)
CODE = _integer("code", 100, 999)
WORDS = _text("words", limits.TEXT_BYTES_MAX)
TOKEN = _text("token", limits.TOKEN_BYTES_MAX)
TEXT = _text("long text", limits.WHERE_BYTES_MAX)
SUBJECTS = _column("subjects", _are_subjects, limits.SUBJECT_BYTES_MAX)
RECORDS = _column("records", _are_records)
FINALS = _column("flags", _are_flags)
SEQUENCES = _column("sequences", lambda value: _are_integers(value, 1))
PROPERTIES = Rule(
    "properties", lambda value: value is None or _is_properties_column(value), limits.BATCH_MESSAGES_MAX
)
CRITERIA = _list("criteria", limits.CRITERIA_MAX, _are_criteria)
RANGES = _list("ranges", limits.RANGES_MAX, _are_ranges)
HELD = Rule("held ranges", lambda value: value == [] or RANGES.holds(value), limits.RANGES_MAX)
SETTLED = Rule(
    "settled ranges",
    lambda value: type(value) is list and len(value) <= limits.SETTLED_MAX and _are_ranges(value),
    limits.SETTLED_MAX,
)
STORED_RANGES = _list("stored ranges", limits.ITEMS_MAX, _are_stored_ranges)
VERSIONS = _list("versions", limits.VERSIONS_MAX, lambda value: _are_integers(value, 1))
MAP = Rule("map", lambda value: type(value) is dict and is_plain(value))
LIMITS = Rule("limits", lambda value: type(value) is dict and all(map(_is_limit, value.items())))
KIND = Rule("kind", lambda value: value in ("mailbox", "service"))
CORRELATION = Rule(
    "correlation",
    lambda value: (
        (type(value) is int and abs(value) <= limits.NUMBER_MAX)
        or (type(value) is str and _fits(value, limits.TEXT_BYTES_MAX))
    ),
    bytes_max=limits.TEXT_BYTES_MAX,
)
BINARY = Rule("binary", lambda value: type(value) is bytes)
BOOLEAN = Rule("boolean", lambda value: type(value) is bool)
ANY = Rule("any value", is_plain)


def _is_limit(item: tuple[Any, Any]) -> bool:
    return type(item[0]) is str and NUMBER.holds(item[1])


class Spec(NamedTuple):
    """One command of the protocol.

    `rules` has one entry for each field on the wire, `required` of which must be there. `ref` is the
    place of the field that an answer refers to (-1: none). `frames` tells what may follow the first frame.
    `records` is the place of the column of records, and `columns` are those of the columns beside it.
    """

    opcode: int
    message: type[Any]
    rules: tuple[Rule, ...]
    required: int
    ref: int = -1
    frames: str = ""
    records: int = 0
    columns: tuple[int, ...] = ()

    def hold(self, fields: Sequence[Any]) -> bool:
        """Whether each field is within its range."""
        # The checks of its rules, looked up by opcode, since this is done for each command.
        return all(map(call, _CHECKS[self.opcode], fields))

    @property
    def name(self) -> str:
        """The name in the documentation."""
        return self.message.__name__.upper()


SPECS: tuple[Spec, ...] = (
    Spec(
        1, Hello, (VERSIONS, ADDRESS, WORDS, SEQUENCE, NUMBER, NUMBER, SETTLED, TOKEN, ADDRESS, BOOLEAN), 2, 4
    ),
    Spec(2, Publish, (NAME, NUMBER, SUBJECTS, RECORDS, DURATION), 4, 1, "large", 3, (2,)),
    Spec(3, Send, (NAME, NUMBER, SUBJECTS, RECORDS, PROPERTIES), 4, 1, "large", 3, (2, 4)),
    Spec(4, Request, (NAME, NUMBER, SUBJECTS, RECORDS, PROPERTIES, HELD), 4, 1, "large", 3, (2, 4)),
    Spec(
        5, Reply, (NEW_SOURCE, NUMBER, SEQUENCES, FINALS, RECORDS, CREDIT, CREDIT), 5, 1, "large", 4, (2, 3)
    ),
    Spec(
        6,
        Subscribe,
        (NEW_SOURCE, NAME, CRITERIA, TEXT, WORDS, CREDIT, CREDIT, ADDRESS, NUMBER, BOOLEAN, BOOLEAN, WORDS),
        3,
        0,
    ),
    Spec(7, Offer, (NEW_SOURCE, NAME, CRITERIA, CREDIT, CREDIT, DURATION, KIND), 3, 0),
    Spec(8, Cancel, (NEW_SOURCE,), 1, 0),
    Spec(9, Credit, (SOURCE, CREDIT, CREDIT), 2, 0),
    Spec(10, Ack, (SOURCE, RANGES, CREDIT, CREDIT), 2, 0),
    Spec(11, Query, (REF, WORDS, MAP), 3, 0),
    Spec(12, Ping, (NUMBER,), 0),
    Spec(13, Bye, (), 0),
    Spec(14, Commit, (NAME, NUMBER, NAME, NUMBER, WORDS), 4, 1),
    Spec(15, Change, (NUMBER, WORDS, MAP), 3, 0),
    Spec(16, Nak, (SOURCE, RANGES, DELAY), 2, 0),
    Spec(17, Reject, (SOURCE, RANGES, WORDS, BOOLEAN), 2, 0),
    Spec(18, Progress, (SOURCE, RANGES), 2, 0),
    Spec(19, Release, (SOURCE, RANGES), 2, 0),
    Spec(20, Withdraw, (REF, KIND, NAME, CORRELATION), 4, 0),
    Spec(21, Drain, (SOURCE, HELD), 2, 0),
    Spec(22, Received, (NUMBER,), 1),
    Spec(65, Welcome, (NUMBER, BINARY, BINARY, BOOLEAN, WORDS, LIMITS, NUMBER, NUMBER, ADDRESS), 6),
    Spec(66, Ok, (OPCODE, REF, ANY), 2, 1),
    Spec(67, Error, (CODE, TEXT, OPCODE, REF, DURATION), 2, 3),
    Spec(68, Stored, (STORED_RANGES,), 1),
    Spec(69, Deliver, (SOURCE, NUMBER), 2, 0, "payload"),
    Spec(70, Gap, (SOURCE, SEQUENCE, NUMBER, WORDS), 4, 0),
    Spec(71, Switch, (SOURCE, WORDS, SEQUENCE), 3, 0),
    Spec(72, Answer, (REF, ANY), 2, 0),
    Spec(73, Pong, (), 0),
    Spec(74, Recall, (SOURCE, RANGES, WORDS), 3, 0),
)
"""The commands of the client have opcodes below 64, those of the broker from 64 on."""

BY_OPCODE: dict[int, Spec] = {spec.opcode: spec for spec in SPECS}
BY_TYPE: dict[type[Any], Spec] = {spec.message: spec for spec in SPECS}
_CHECKS = {spec.opcode: tuple(rule.holds for rule in spec.rules) for spec in SPECS}


def error_message(error: MalamuteError, about: int = 0, ref: int = 0) -> Error:
    """The ERROR that tells a peer of `error`. Words that are too long for it are cut."""
    text = error.text or str(error)
    words = text.encode("utf-8", "replace")[: limits.WHERE_BYTES_MAX].decode("utf-8", "ignore")
    # A rate of one a second is not reached again for years by one huge command.
    retry_after = min(round(error.retry_after * 1000), limits.DURATION_MS_MAX)
    return Error(error.code, words, error.about or about, error.ref or ref, retry_after)
