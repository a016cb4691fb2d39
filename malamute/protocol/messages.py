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
    ANY_REVISION,
    UNLIMITED,
    Address,
    Amount,
    AnyValue,
    Binary,
    Boolean,
    BucketValue,
    Code,
    Correlation,
    CreditCount,
    Criteria,
    Delay,
    Duration,
    Expected,
    Finals,
    HeldRanges,
    KeyRows,
    Keys,
    LimitCounts,
    Map,
    Name,
    NewNumber,
    NewSource,
    Number,
    Opcode,
    PairUrls,
    Position,
    Positions,
    Properties,
    QueueKind,
    Ranges,
    Records,
    Ref,
    Rule,
    Senders,
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

    `settled` are ranges of numbers above it that have one: a broker that was killed may have forgotten its
    refusals.
    `attempt` counts the HELLOs of a client; WELCOME repeats it, so that an answer to an earlier HELLO is
    recognized.
    `heartbeat` is the longest time in milliseconds without any traffic, ZMTP heartbeats included; 0 is no
    promise.
    `token` authenticates the client where the connection does not: a bearer token, or a user and a password
    (`passwords.pack_login`). The token is a secret, and no text shows it.
    `act_as` is the user whose rights the session has, if not the authenticated one.
    A `signed` session publishes with its user as the sender, and not with its address: see `signature`.
    A HELLO that `renews` gives an open session another token, and leaves what the session holds: OK answers.
    """

    versions: Versions
    address: Address
    software: Words = ""
    unsettled: Position = 1
    attempt: Number = 0
    heartbeat: Number = 0
    settled: SettledRanges = []  # a list, as a decoded value
    token: Token = ""
    act_as: Address = ""
    signed: Boolean = False
    renews: Boolean = False

    def __repr__(self) -> str:
        shown = {name: repr(value) for name, value in self._asdict().items()}
        shown["token"] = "…"
        left_out = {name for name in ("token", "act_as", "signed", "renews") if not getattr(self, name)}
        return f"Hello({', '.join(f'{name}={shown[name]}' for name in self._fields if name not in left_out)})"


class Publish(NamedTuple):
    """Publish messages to a stream. With a number other than 0 they are confirmed by STORED.

    The messages expire `ttl` milliseconds after the broker has accepted them; 0 is never. A command with the
    `id` of one that the same user has published to the stream before stores nothing, and is confirmed as that
    one.
    """

    stream: Name
    number: Number
    subjects: Subjects
    records: Records
    ttl: Duration = 0
    id: Address = ""


class Send(NamedTuple):
    """Send messages to a mailbox, whether its owner is connected or not."""

    address: Name
    number: Number
    subjects: Subjects
    records: Records
    properties: Properties = None


class Request(NamedTuple):
    """Send requests to a service. The replies come to the mailbox of the requester.

    `acks` acknowledges deliveries of that mailbox like an ACK before the request, even if that is refused.
    """

    service: Name
    number: Number
    subjects: Subjects
    records: Records
    properties: Properties = None
    acks: HeldRanges = []  # a list, as a decoded value


class Reply(NamedTuple):
    """Answer requests of an offer. A final reply completes its request and gives no credit back by itself.

    `credit` and `credit_bytes` are granted to the offer like a CREDIT after the reply, even if that is
    refused; 0 and 0 grant nothing.
    """

    source: NewSource
    number: Number
    sequences: Positions
    finals: Finals
    records: Records
    credit: CreditCount = 0
    credit_bytes: CreditCount = 0


class Subscribe(NamedTuple):
    """Subscribe to a stream. A message that matches any of the criteria and `where` is delivered once.

    A subscription with a known cursor begins behind that position; a new cursor is set to `start`. `had` is
    the last message of an older connection: GAP reports its loss. With `committed`, messages are durable
    before delivery. With `existing`, a stream that does not exist is not created. `resume` is the position up
    to which an earlier subscription received everything, `N@STORE`: the new one continues there if that is a
    position in this broker's store. Otherwise the subscription begins anew, and GAP reports that.
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
    """Offer to work for a service, on requests whose subject matches any of the criteria.

    An offer of the kind `mailbox` receives from the mailbox of this name, beside its owner and others, and
    its criteria match the address of the sender. A delivery without settlement or PROGRESS within
    `ack_timeout` milliseconds is requeued; 0 is the configured timeout. A `temporary` offer creates a mailbox
    that is removed with its last consumer. An offer for `once` ends by itself when nothing is ready for it,
    with OK about CANCEL.
    """

    source: NewSource
    service: Name
    criteria: Criteria
    credit: CreditCount = 0
    credit_bytes: CreditCount = UNLIMITED
    ack_timeout: Duration = 0
    kind: QueueKind = "service"
    temporary: Boolean = False
    once: Boolean = False


class Cancel(NamedTuple):
    """End a subscription or an offer. Unfinished requests are requeued."""

    source: NewSource


class Credit(NamedTuple):
    """Allow more deliveries from a source, beyond its credit so far. -1 is without limit."""

    source: Source
    messages: CreditCount
    bytes: CreditCount = 0


class Ack(NamedTuple):
    """Acknowledge deliveries of the mailbox or of an offer by ranges of their sequences.

    `credit` and `credit_bytes` are granted to the source like a CREDIT after the ACK, even if the ranges are
    refused; 0 and 0 grant nothing.
    """

    source: Source
    ranges: Ranges
    credit: CreditCount = 0
    credit_bytes: CreditCount = 0


class Nak(NamedTuple):
    """Return deliveries, to be redelivered after `delay` milliseconds; -1 is the backoff."""

    source: Source
    ranges: Ranges
    delay: Delay = -1


class Reject(NamedTuple):
    """Dead-letter deliveries, with the reason.

    With `bounce`, deliveries of a mailbox return to their senders.
    """

    source: Source
    ranges: Ranges
    reason: Words = ""
    bounce: Boolean = False


class Progress(NamedTuple):
    """Report that deliveries are still worked on: their ack timeout begins anew."""

    source: Source
    ranges: Ranges


class Release(NamedTuple):
    """Return deliveries untouched: the delivery does not count as an attempt."""

    source: Source
    ranges: Ranges


class Drain(NamedTuple):
    """Stop the deliveries of a source, and requeue untouched all in flight that are not `held`.

    OK means that no delivery follows before more credit is granted.
    """

    source: Source
    held: HeldRanges


class Withdraw(NamedTuple):
    """Withdraw unsettled messages or requests of this session's address with a correlation.

    With an `id`, the messages under it are withdrawn that no consumer has, whoever sent them; the correlation
    is ignored. A consumer that has one gets RECALL, and keeps the message.
    """

    ref: Ref
    kind: QueueKind
    name: Name
    correlation: Correlation
    id: Words = ""


class Query(NamedTuple):
    """Query the broker about itself."""

    ref: Ref
    topic: Words
    arguments: Map


class Ping(NamedTuple):
    """Ask the peer for a sign of life: PONG from a broker; RECEIVED from a client if there is a token."""

    token: Number = 0


class Received(NamedTuple):
    """Confirm that the client has read the PING with this token, and all before it, from its socket."""

    token: Number


class Bye(NamedTuple):
    """End the session: its deliveries in flight are requeued, and no client can resume the session."""


class Commit(NamedTuple):
    """Set a cursor of a stream: the reader is done with everything up to `sequence`.

    With the name of its `store`, a sequence of another broker's store is refused.
    """

    stream: Name
    number: Number
    cursor: Name
    sequence: Number
    store: Words = ""


class Change(NamedTuple):
    """Change something in the broker. A change with a number is made once; OK has its outcome."""

    number: Number
    topic: Words
    arguments: Map


class Get(NamedTuple):
    """Ask for keys of a bucket: ANSWER has a row `[revision, value, ttl]` for each, or nil for one without.

    The `ttl` is what is left of it in milliseconds, 0 without one. A value that is not durable yet is not in
    the answer.
    """

    ref: Ref
    bucket: Name
    keys: Keys


class Put(NamedTuple):
    """Set the value of a key, once: OK has the new revision when it is durable.

    The key expires after `ttl` milliseconds; 0 is never. With an `expect` other than -1 the key has to have
    this revision, and 0 is a key that is not there. `ranges` are deliveries of the `source` that are
    acknowledged in the same commit.
    """

    number: NewNumber
    bucket: Name
    key: Name
    value: BucketValue
    ttl: Duration = 0
    expect: Expected = ANY_REVISION
    source: Source = 0
    ranges: HeldRanges = []  # a list, as a decoded value


class Delete(NamedTuple):
    """Delete a key, once: OK has whether it was there. `expect` is as in PUT."""

    number: NewNumber
    bucket: Name
    key: Name
    expect: Expected = ANY_REVISION


class Add(NamedTuple):
    """Add to a key whose value is an integer in decimal digits, once: OK has the sum and the new revision.

    A key that is not there counts as 0. `ttl` is as in PUT, but 0 leaves the expiry of the key.
    """

    number: NewNumber
    bucket: Name
    key: Name
    amount: Amount
    ttl: Duration = 0


class Watch(NamedTuple):
    """Watch keys of a bucket: CHANGED has their present state, and from then on each newer one.

    Of the states of a key between two CHANGED, the newest is sent.
    """

    source: NewSource
    bucket: Name
    keys: Keys


class Forward(NamedTuple):
    """Publish what a link has read elsewhere, in the commit that stores how far the link has come.

    The messages keep their `senders`, and expire by the stream's own rule. `upto` is the position in the
    source behind them, `N@STORE`. The command is refused unless the link has this `generation`, and stands at
    `after`; empty is a link without a position.
    """

    stream: Name
    number: NewNumber
    subjects: Subjects
    records: Records
    link: Name
    generation: Position
    after: Words
    upto: Words
    senders: Senders


class Welcome(NamedTuple):
    """The answer to HELLO. `resumed` means that the broker still knew the session.

    Beside the limits there is the `ack_timeout` for the session's mail, in milliseconds. `attempt` is that of
    the answered HELLO. `incarnation` differs after the broker was restored from a backup. `user` is the
    authenticated user, empty without authentication. `urls` are those of the brokers of a pair.
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
    urls: PairUrls = []  # a list, as a decoded value


class Ok(NamedTuple):
    """The command `about` with this `ref` is done.

    For SUBSCRIBE, `value` is the first sequence; for OFFER, the ack timeout in force, in milliseconds; for
    CHANGE, PUT, DELETE and ADD, its outcome; for WITHDRAW, the number of messages, and by an id `[withdrawn,
    in flight]`.
    """

    about: Opcode
    ref: Ref
    value: AnyValue = None


class Error(NamedTuple):
    """The command `about` with this `ref` was refused and changed nothing. 0 is unknown.

    After `retry_after` milliseconds this reason no longer applies; 0 is unknown. `details` are fields for
    programs, by name.
    """

    code: Code
    text: Text
    about: Opcode = 0
    ref: Ref = 0
    retry_after: Duration = 0
    details: Map = {}


class Stored(NamedTuple):
    """Commands are durable: ranges `[first number, last number, first sequence]`.

    A PUBLISH whose id was known has a range of its own, with the negative of the first one's sequence.
    """

    ranges: StoredRanges


class Deliver(NamedTuple):
    """Messages from a source, as received. `after` is the last sequence of the delivery before."""

    source: Source
    after: Number
    payload: Frame
    large: Sequence[Frame] = ()


class Delivery(NamedTuple):
    """Messages from a source, as sent: the part keeps their encoded form once there is one."""

    source: int
    after: int
    part: DeliveryPart


class Gap(NamedTuple):
    """The messages of a subscription from `first` to `last` are unavailable, with the reason.

    A gap before the last delivered message is of messages that the subscription has had: they are lost. With
    the reason `another-store` the subscription begins anew behind `last`, which may be 0.
    """

    source: Source
    first: Position
    last: Number
    reason: Words


RESTART, NOT_STORED, OVERWRITTEN, NO_JOURNAL = "restart", "not-stored", "overwritten", "no-journal"
TAKEN_BACK = "taken-back"
"""The reason of a gap of messages that were delivered before they were durable, and never became it."""
RESTORED = "restored"
"""The reason of a gap between a backup and the first message after its restore: any may have been lost."""
EXPIRED = "expired"
"""The reason of a gap whose matching messages have all expired."""
DELETED = "deleted"
"""The reason of a gap of messages that an operator has deleted from the stream."""
ANOTHER_STORE = "another-store"
"""The reason of a gap before a subscription whose position was in another store.

The gap has the messages of this store before the position where the subscription begins anew, perhaps none.
"""
GAP_REASONS = (
    RESTART,
    NOT_STORED,
    OVERWRITTEN,
    NO_JOURNAL,
    TAKEN_BACK,
    RESTORED,
    EXPIRED,
    DELETED,
    ANOTHER_STORE,
)
"""All reasons of gaps."""

HARMLESS = frozenset((RESTART, NOT_STORED))
"""Reasons of gaps without any message whose publisher had a confirmation."""


class Switch(NamedTuple):
    """A subscription is now `live` or in `replay`, from this sequence on.

    A subscription that is `limited` from its start on has a part of its criteria: the rules allow no more.
    """

    source: Source
    state: Words
    sequence: Position


LIMITED = "limited"
"""The state of a subscription that has a part of its criteria."""


class Answer(NamedTuple):
    """The answer to a QUERY."""

    ref: Ref
    value: AnyValue


class PackedAnswer(NamedTuple):
    """An ANSWER whose value is packed already, as its size had to be known."""

    ref: int
    value: bytes


class Changed(NamedTuple):
    """The states of watched keys: rows `[key, revision, value, ttl]`, or `[key, 0, nil, 0]` of none."""

    source: Source
    rows: KeyRows


class Pong(NamedTuple):
    """The answer to PING."""


CANCELLED = "cancelled"
"""The reason of a RECALL that takes nothing: its messages are unwanted, and stay with the receiver."""


class Recall(NamedTuple):
    """Deliveries of a source are taken from the receiver: `timeout`, `expired`, `withdrawn`, `purged`.

    With the reason `cancelled` they stay with the receiver, who may end the work.
    """

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
    | Get
    | Put
    | Delete
    | Add
    | Watch
    | Forward
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
    | Changed
)


class Spec(NamedTuple):
    """One command of the protocol.

    `rules` has one entry for each field on the wire, `required` of which must be there. `ref` is the place of
    the field that an answer refers to (-1: none). `frames` names the frames behind the first. `records`
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
    _command(23, Get, 0),
    _command(24, Put, 0),
    _command(25, Delete, 0),
    _command(26, Add, 0),
    _command(27, Watch, 0),
    _command(28, Forward, 1, "large", 3, (2, 8)),
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
    _command(75, Changed, 0),
)
"""The commands of the client have opcodes below 64, those of the broker from 64 on."""

BY_OPCODE: dict[int, Spec] = {spec.opcode: spec for spec in SPECS}
BY_TYPE: dict[type[Any], Spec] = {spec.message: spec for spec in SPECS}


def error_message(error: MalamuteError, about: int = 0, ref: int = 0) -> Error:
    """Return the ERROR that reports `error` to a peer. A text that is too long is cut."""
    text = error.text or str(error)
    words = text.encode("utf-8", "replace")[: limits.WHERE_BYTES_MAX].decode("utf-8", "ignore")
    # A rate of one a second is not reached again for years by one huge command.
    retry_after = min(round(error.retry_after * 1000), limits.DURATION_MS_MAX)
    return Error(error.code, words, error.about or about, error.ref or ref, retry_after, error.details)
