"""The messages of protocol 2: every command with its number, its fields and their types.

A message is an immutable value. On the wire it is a msgpack array `[opcode, field, …]`, in the order of
the class. The type of each field has its bounds (`fields.py`); a field with a default may be left out.
`SPECS` is the table of all commands; the codec, the tests and docs/protocol.md follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from malamute.errors import MalamuteError
from malamute.protocol import limits
from malamute.protocol.batch import Frame
from malamute.protocol.fields import (
    UNLIMITED,
    Address,
    AnyValue,
    Binary,
    Boolean,
    Code,
    Correlation,
    CreditCount,
    Criteria,
    Delay,
    Duration,
    Finals,
    HeldRanges,
    LimitCounts,
    Map,
    Name,
    NewSource,
    Number,
    Opcode,
    Position,
    Positions,
    Properties,
    QueueKind,
    Ranges,
    Records,
    Ref,
    Rule,
    SettledRanges,
    Source,
    StoredRanges,
    Subjects,
    Text,
    Token,
    Versions,
    Words,
    rule_of,
)
from malamute.protocol.part import DeliveryPart

VERSION = 2
MAILBOX = 0
"""The source id of a session's own mailbox. Subscriptions and offers have ids from 1."""


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

    versions: Versions
    address: Address
    software: Words = ""
    unsettled: Position = 1
    attempt: Number = 0
    heartbeat: Number = 0
    settled: SettledRanges = []  # what is decoded is a list
    token: Token = ""
    act_as: Address = ""
    signed: Boolean = False

    def __repr__(self) -> str:
        shown = {name: repr(value) for name, value in self._asdict().items()}
        shown["token"] = "…"
        left_out = {name for name in ("token", "act_as", "signed") if not getattr(self, name)}
        return f"Hello({', '.join(f'{name}={shown[name]}' for name in self._fields if name not in left_out)})"


class Publish(NamedTuple):
    """Publish messages to a stream. With a number other than 0 they are confirmed by STORED.

    They expire `ttl` milliseconds after the broker has accepted them; 0 is never.
    """

    stream: Name
    number: Number
    subjects: Subjects
    records: Records
    ttl: Duration = 0


class Send(NamedTuple):
    """Send messages to a mailbox, whether its owner is there or not."""

    address: Name
    number: Number
    subjects: Subjects
    records: Records
    properties: Properties = None


class Request(NamedTuple):
    """Ask a service. The replies come to the mailbox of the requester.

    `acks` acknowledges deliveries of that mailbox, as by an ACK before it, whatever becomes of the request.
    """

    service: Name
    number: Number
    subjects: Subjects
    records: Records
    properties: Properties = None
    acks: HeldRanges = []  # what is decoded is a list


class Reply(NamedTuple):
    """Answer requests of an offer. A final reply completes its request and gives no credit back by itself.

    `credit` and `credit_bytes` are granted to the offer, as by a CREDIT behind it, whatever becomes of the
    reply; 0 and 0 grant nothing.
    """

    source: NewSource
    number: Number
    sequences: Positions
    finals: Finals
    records: Records
    credit: CreditCount = 0
    credit_bytes: CreditCount = 0


class Subscribe(NamedTuple):
    """Subscribe to a stream. A message that meets any of the criteria, and `where`, comes once.

    With a cursor that the broker knows it begins behind it; one that is new is set to `start`. `had` is the
    last message that came before, on an older connection: GAP tells if the broker has lost it since. What is
    `committed` is on the disk before it is delivered. Of an `existing` stream alone: it makes none. One that
    stood before names in `resume` the position up to which it has had everything, `N@STORE`: it goes on
    there if that is a position in this broker's store. Otherwise it begins anew, and GAP reports that.
    """

    source: NewSource
    stream: Name
    criteria: Criteria
    where: Text = ""
    start: Words = "new"
    credit: CreditCount = 0
    credit_bytes: CreditCount = UNLIMITED
    cursor: Address = ""
    had: Number = 0
    committed: Boolean = False
    existing: Boolean = False
    resume: Words = ""


class Offer(NamedTuple):
    """Offer to work for a service, on requests whose subject meets any of the criteria.

    Of the kind `mailbox` it is an offer to receive from the mailbox of this name, beside its owner and
    others, and the criteria are of the address of the sender. What is not settled or reported on within
    `ack_timeout` milliseconds is taken back; 0 is what the broker is configured for.
    """

    source: NewSource
    service: Name
    criteria: Criteria
    credit: CreditCount = 0
    credit_bytes: CreditCount = UNLIMITED
    ack_timeout: Duration = 0
    kind: QueueKind = "service"


class Cancel(NamedTuple):
    """End a subscription or an offer. Unfinished requests go back to the queue."""

    source: NewSource


class Credit(NamedTuple):
    """Allow more deliveries from a source, beyond what was allowed before. -1 is without limit."""

    source: Source
    messages: CreditCount
    bytes: CreditCount = 0


class Ack(NamedTuple):
    """Acknowledge deliveries of the mailbox or of an offer by ranges of their sequences.

    `credit` and `credit_bytes` are granted to the source, as by a CREDIT behind it, whatever becomes of the
    ranges; 0 and 0 grant nothing.
    """

    source: Source
    ranges: Ranges
    credit: CreditCount = 0
    credit_bytes: CreditCount = 0


class Nak(NamedTuple):
    """Give deliveries back, to be delivered again after `delay` milliseconds; -1 is by the backoff."""

    source: Source
    ranges: Ranges
    delay: Delay = -1


class Reject(NamedTuple):
    """Refuse deliveries for good: they become dead letters, with the reason.

    To `bounce` them is to give those of a mailbox back to their senders.
    """

    source: Source
    ranges: Ranges
    reason: Words = ""
    bounce: Boolean = False


class Progress(NamedTuple):
    """Report that deliveries are still worked on: their time to be acknowledged begins anew."""

    source: Source
    ranges: Ranges


class Release(NamedTuple):
    """Give deliveries back untouched: it does not count as an attempt."""

    source: Source
    ranges: Ranges


class Drain(NamedTuple):
    """Stop the deliveries of a source, and take back untouched all that is outstanding and not `held`.

    OK says that nothing more comes, before more credit is granted.
    """

    source: Source
    held: HeldRanges


class Withdraw(NamedTuple):
    """Take back what was sent or asked by this session's address under a correlation, and is not settled."""

    ref: Ref
    kind: QueueKind
    name: Name
    correlation: Correlation


class Query(NamedTuple):
    """Ask the broker about itself."""

    ref: Ref
    topic: Words
    arguments: Map


class Ping(NamedTuple):
    """Are you there? The broker answers PONG. A client answers RECEIVED if there is a token."""

    token: Number = 0


class Received(NamedTuple):
    """The client has taken the PING with this token, and all that came before it, from its socket."""

    token: Number


class Bye(NamedTuple):
    """End the session: what it holds goes back to the queues, and it cannot be resumed."""


class Commit(NamedTuple):
    """Set a named position of a stream: the reader is done with everything up to `sequence`.

    A sequence that is not of this broker's store is refused, if `store` names the one that it is of.
    """

    stream: Name
    number: Number
    cursor: Name
    sequence: Number
    store: Words = ""


class Change(NamedTuple):
    """Change something in the broker. Under a number it is made once; OK has what it came to."""

    number: Number
    topic: Words
    arguments: Map


class Welcome(NamedTuple):
    """The answer to HELLO. `resumed` tells that the broker still knew the session.

    Beside the limits there is the `ack_timeout` for the session's mail, in milliseconds. `attempt` is that of
    the HELLO that is answered. `incarnation` is another number when the broker was restored from a backup
    since. `user` is whose the session is, as the broker found out; empty for nobody's.
    """

    version: Number
    session: Binary
    broker: Binary
    resumed: Boolean
    software: Words
    limits: LimitCounts
    attempt: Number = 0
    incarnation: Number = 0
    user: Address = ""


class Ok(NamedTuple):
    """The command `about` with this `ref` is done.

    For SUBSCRIBE, `value` is the first sequence; for OFFER, the ack timeout in force, in milliseconds; for
    CHANGE, what it did.
    """

    about: Opcode
    ref: Ref
    value: AnyValue = None


class Error(NamedTuple):
    """The command `about` with this `ref` was refused and changed nothing. 0 means not known.

    The same command would not be refused for this reason after `retry_after` milliseconds; 0 is not known.
    """

    code: Code
    text: Text
    about: Opcode = 0
    ref: Ref = 0
    retry_after: Duration = 0


class Stored(NamedTuple):
    """Commands are on the disk: ranges `[first number, last number, first sequence]`."""

    ranges: StoredRanges


class Deliver(NamedTuple):
    """Messages from a source, as they come in. `after` is the last sequence that the delivery before had."""

    source: Source
    after: Number
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

    source: Source
    first: Position
    last: Number
    reason: Words


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

    source: Source
    state: Words
    sequence: Position


LIMITED = "limited"
"""The state of a subscription that has a part of what was asked for."""


class Answer(NamedTuple):
    """The answer to a QUERY."""

    ref: Ref
    value: AnyValue


class PackedAnswer(NamedTuple):
    """An ANSWER whose value is packed already: its maker had to know how large it is."""

    ref: int
    value: bytes


class Pong(NamedTuple):
    """The answer to PING."""


class Recall(NamedTuple):
    """Deliveries of a source are no longer the receiver's: `timeout`, `expired`, `withdrawn`, `purged`."""

    source: Source
    ranges: Ranges
    reason: Words


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


class Spec(NamedTuple):
    """One command of the protocol.

    `rules` has one entry for each field on the wire, `required` of which must be there. `ref` is the place of
    the field that an answer refers to (-1: none). `frames` names what may follow the first frame. `records`
    is the place of the column of records, and `columns` are those of the columns beside it.
    """

    opcode: int
    message: type[Any]
    rules: tuple[Rule, ...]
    required: int
    ref: int
    frames: str
    records: int
    columns: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name in the documentation."""
        return self.message.__name__.upper()


def _command(
    opcode: int,
    message: type[Any],
    ref: int = -1,
    frames: str = "",
    records: int = 0,
    columns: tuple[int, ...] = (),
) -> Spec:
    """Return the spec of a command: its rules are the types of its class."""
    hints = get_type_hints(message, include_extras=True)
    names = [name for name in message._fields if get_origin(hints[name]) is Annotated]
    rules = tuple(rule_of(hints[name]) for name in names)
    required = sum(name not in message._field_defaults for name in names)
    return Spec(opcode, message, rules, required, ref, frames, records, columns)


SPECS: tuple[Spec, ...] = (
    _command(1, Hello, 4),
    _command(2, Publish, 1, "large", 3, (2,)),
    _command(3, Send, 1, "large", 3, (2, 4)),
    _command(4, Request, 1, "large", 3, (2, 4)),
    _command(5, Reply, 1, "large", 4, (2, 3)),
    _command(6, Subscribe, 0),
    _command(7, Offer, 0),
    _command(8, Cancel, 0),
    _command(9, Credit, 0),
    _command(10, Ack, 0),
    _command(11, Query, 0),
    _command(12, Ping),
    _command(13, Bye),
    _command(14, Commit, 1),
    _command(15, Change, 0),
    _command(16, Nak, 0),
    _command(17, Reject, 0),
    _command(18, Progress, 0),
    _command(19, Release, 0),
    _command(20, Withdraw, 0),
    _command(21, Drain, 0),
    _command(22, Received),
    _command(65, Welcome),
    _command(66, Ok, 1),
    _command(67, Error, 3),
    _command(68, Stored),
    _command(69, Deliver, 0, "payload"),
    _command(70, Gap, 0),
    _command(71, Switch, 0),
    _command(72, Answer, 0),
    _command(73, Pong),
    _command(74, Recall, 0),
)
"""The commands of the client have opcodes below 64, those of the broker from 64 on."""

BY_OPCODE: dict[int, Spec] = {spec.opcode: spec for spec in SPECS}
BY_TYPE: dict[type[Any], Spec] = {spec.message: spec for spec in SPECS}


def error_message(error: MalamuteError, about: int = 0, ref: int = 0) -> Error:
    """The ERROR that tells a peer of `error`. Words that are too long for it are cut."""
    text = error.text or str(error)
    words = text.encode("utf-8", "replace")[: limits.WHERE_BYTES_MAX].decode("utf-8", "ignore")
    # A rate of one a second is not reached again for years by one huge command.
    retry_after = min(round(error.retry_after * 1000), limits.DURATION_MS_MAX)
    return Error(error.code, words, error.about or about, error.ref or ref, retry_after)
