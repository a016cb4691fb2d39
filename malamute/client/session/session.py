"""The session: all decisions of a client, without a socket, a clock, a thread or chance.

An edge owns one session and one DEALER socket whose routing id is the session's `identity`. The edge reports
changes of the connection (`connected`, `disconnected`) and received commands (`receive`), and after each of
these and after each command it has to

    - report the time (`look_at_clock`);
    - send what `outbox.next_to_send` shows, calling `outbox.sent` for each that the socket took;
    - hand `pop_events` to the user;
    - check its waits again.

This module has the life of a session, from one connection to the next, and the dispatch of the broker's
commands. The calls of a client are in its parts, each of which knows only those before it:

    outbox           commands on their way, and kept until they are answered
    pending_replies  waits for replies and outcomes
    inbox            subscriptions, offers and the mailbox: begin, end, and deliveries
    sending          publish, send, request, reply, commit
    questions        query, change (once, as a command in the outbox), withdraw, ping

Commands never wait. Each returns an object to look at (`Command.done`, `Source.open`, `Query.done`,
`PendingRequest.waiting`); the edge's only art is to wait until it has changed. When `error` is set the
session is over, and every awaited object has that error.

    LOST ──connected──▶ OPENING ──WELCOME──▶ READY ──▶ ENDED     by an error, or BYE and its OK
      ▲                    │ ▲                 │
      └─disconnected, 509──┴─┼────────────────-┤
                             └─────resync──────┘

ERROR 509 about HELLO is of a broker that is not the primary of its pair (`Moved`): the edge goes on to
another one, and all goes on there as after a restart.

*Resync* is HELLO on a connection that still stands: for a gap in a source, for a command that reached a
broker which does not know us any more (405), for a number that left a gap (421). After WELCOME everything is
set up again, in one place (`_resume`), whether the connection was new or not: sources from their positions
with fresh credit, questions without answer, and all unsettled commands with their old numbers. After
`RESYNCS_MAX` resyncs without success the session ends with the error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from malamute.client.events import Connected, Event, Lost, Moved, Refusal, Restored
from malamute.client.options import check_name
from malamute.client.session.inbox import Inbox
from malamute.client.session.outbox import COALESCED_BYTES, WINDOW_COMMANDS, Outbox
from malamute.client.session.plain import plain
from malamute.client.session.questions import Questions
from malamute.client.session.replies import PendingReplies
from malamute.client.session.sending import Sending
from malamute.errors import Closed, ConnectionLost, MalamuteError, Malformed, NotPrimary, from_wire
from malamute.protocol import messages as wire
from malamute.protocol.batch import Frame
from malamute.protocol.codec import decode
from malamute.protocol.limits import Limits
from malamute.protocol.messages import BY_TYPE, VERSION
from malamute.protocol.position import store_name

RESYNCS_MAX = 5
"""Resyncs in a row without success before the session gives up."""


class State(enum.Enum):
    """The state of a session."""

    LOST = "lost"
    OPENING = "opening"
    READY = "ready"
    ENDED = "ended"


class ClientSession:
    """One client, over all its connections."""

    def __init__(
        self,
        identity: bytes,
        *,
        address: str = "",
        software: str = "",
        heartbeat: float = 0.0,
        token: str = "",
        act_as: str = "",
        signed: bool = False,
    ) -> None:
        for what, name in (("address", address), ("user to act as", act_as)):
            if name:
                check_name(what, name)
        # HELLO is sent at each reconnect: a value that it cannot carry is refused here.
        plain(wire.Hello([VERSION], address, software, 1, 1, 0, [], token, act_as))
        self.identity = identity
        self.address = address
        self.software = software
        self._heartbeat_ms = int(heartbeat * 1000)
        self._token = token
        self._act_as = act_as
        self.signed = signed
        self._enter(State.LOST)
        self.error: MalamuteError | None = None
        self.broker = b""
        self.incarnation = 0
        self.user = ""
        """The user of the session, as the broker said last."""
        self.urls: Sequence[str] = ()
        """The URLs of the brokers of a pair, as the broker said last."""
        self.moved: NotPrimary | None = None
        """The refusal of a broker that is not the primary of its pair; None since another has answered."""
        self.closing = False
        self.events: list[Event] = []
        """Events for the program, until `pop_events`."""
        self._resyncs = 0
        self._attempt = 0
        self.outbox = Outbox()
        self.pending_replies = PendingReplies(identity)
        self.inbox = Inbox(address, self.outbox, self.pending_replies, self.events.append)
        self.sending = Sending(address, self.outbox, self.inbox, self.pending_replies)
        self.questions = Questions(self.outbox)

    def _enter(self, state: State) -> None:
        self.state = state
        self._handlers = _HANDLERS[state]

    # Reports of the edge

    def connected(self) -> None:
        """The transport is connected, anew or for the first time: send HELLO."""
        if self.state is not State.ENDED:
            self._hello("the connection to the broker was replaced")

    def disconnected(self) -> None:
        """The transport broke. The edge reconnects by itself."""
        if self.state in (State.OPENING, State.READY):
            self._drop("the connection to the broker broke")
            self._enter(State.LOST)
            self._resyncs = 0

    def receive(self, frames: Sequence[Frame]) -> None:
        """Handle received frames. Never raises for frames of a broker."""
        try:
            message = decode(frames)
            handler = self._handlers.get(type(message))
            if handler is None:
                raise Malformed(f"{type(message).__name__} from the broker: only a client sends it")
            handler(self, message)
        except MalamuteError as error:
            self.events.append(Refusal(error))

    def look_at_clock(self, now: float) -> None:
        """Adapt the window to the bytes that the broker has received by `now`, in seconds."""
        if self.outbox.ready and self.outbox.refusal is None:
            self.outbox.flow.observe(now, self.questions.ping)

    def pop_events(self) -> Sequence[Event]:
        """Return the events since the last call."""
        if not self.events:
            return ()
        events = [*self.events]
        self.events.clear()
        return events

    def close(self) -> None:
        """Release waiting messages, and send BYE when the broker has confirmed that.

        The session has ended, with the error `Closed`, when the broker has answered.
        """
        if self.error is None and not self.closing:
            self.inbox.acknowledge_all()
            self.inbox.close()
            self.closing = True
            self.outbox.refusal = Closed("client is closed: connect again")
            self._say_bye()

    def _say_bye(self) -> None:
        if self.closing and self.inbox.is_drained:
            self.outbox.say(wire.Bye())

    def end(self, error: MalamuteError) -> None:
        """End the session at once, without a command to the broker; nothing happens if it has ended."""
        if self.error is None:
            self._end(error)

    def renew(self, token: str) -> None:
        """Go on with another token of the same user, on this connection and on those to come."""
        self._token = token
        self.outbox.say(self._hello_of(renews=True))

    # Reconnects

    def _hello(self, reason: str) -> None:
        self._drop(reason)
        self._enter(State.OPENING)
        self._attempt += 1
        self.outbox.begin(self._hello_of())

    def _hello_of(self, *, renews: bool = False) -> wire.Hello:
        return wire.Hello(
            [VERSION],
            self.address,
            self.software,
            self.outbox.unsettled,
            self._attempt,
            self._heartbeat_ms,
            self.outbox.settled(),
            self._token,
            self._act_as,
            self.signed,
            renews,
        )

    def _is_current(self, attempt: int) -> bool:
        """Return whether an answer is to the last HELLO, and not to an earlier one; 0 is unknown."""
        return attempt in (0, self._attempt)

    def _drop(self, reason: str) -> None:
        if self.state is State.READY:
            self.events.append(Lost(reason))
        self.outbox.drop()
        self.inbox.restart([command.completes for command in self.outbox.kept() if command.completes])

    def _resync(self, error: MalamuteError) -> None:
        self._resyncs += 1
        if self._resyncs > RESYNCS_MAX:
            self._end(error)
        else:
            self._hello(f"the session has to be opened anew: {error}")

    def _welcome(self, welcome: wire.Welcome) -> None:
        if not self._is_current(welcome.attempt):
            return
        self._enter(State.READY)
        again = bool(self.broker)
        if self.broker == welcome.broker and self.incarnation != welcome.incarnation:
            self.events.append(Restored(welcome.broker.hex()))
        self.broker, self.incarnation = welcome.broker, welcome.incarnation
        self.user, self.urls, self.moved = welcome.user, welcome.urls, None
        self.inbox.store = store_name(welcome.broker, welcome.incarnation)
        known = {name: n for name, n in welcome.limits.items() if name in Limits._fields}
        self.sending.limits = limits = Limits(**known)
        self.outbox.window_commands = max(1, min(WINDOW_COMMANDS, limits.unconfirmed))
        self.outbox.coalesced_bytes = min(COALESCED_BYTES, limits.message_bytes)
        self.events.append(Connected(welcome.broker.hex(), welcome.resumed, again))
        self.questions.resume(doubtful=again and not welcome.resumed)
        self._resume(welcome.limits.get("ack_timeout", 0) / 1000)

    def _resume(self, mail_timeout: float) -> None:
        self.outbox.ready = True
        self.inbox.resume(mail_timeout)
        self.outbox.send_again()
        # A withdrawal comes behind the messages that it withdraws.
        for asking in self.questions.asked():
            self.outbox.say(asking)
        for ping in self.questions.pings():
            self.outbox.say(ping)
        self._say_bye()

    def _end(self, error: MalamuteError) -> None:
        self._enter(State.ENDED)
        self.error = error
        for part in (self.outbox, self.questions, self.pending_replies, self.inbox):
            part.fail(error)

    # Commands of the broker

    def _stored(self, stored: wire.Stored) -> None:
        if self.outbox.stored(stored.ranges):
            self._resyncs = 0

    def _ok(self, ok: wire.Ok) -> None:
        if ok.about == _BYE:
            self._end(Closed("client is closed: connect again"))
        elif ok.about in (_SUBSCRIBE, _OFFER, _WATCH):
            self.inbox.opened(ok.ref, ok.value)
        elif ok.about == _DRAIN:
            self._drained(ok.ref)
        elif ok.about == _WITHDRAW:
            self.questions.answered(ok.ref, ok.value)
        elif ok.about == _CANCEL:
            self.inbox.ended(ok.ref)
        else:
            self._changed(ok)

    def _drained(self, source: int) -> None:
        self.inbox.drained(source)
        self._say_bye()

    def _changed(self, ok: wire.Ok) -> None:
        if ok.about in _CHANGES and self.questions.changed(ok.ref, ok.value):
            self._resyncs = 0

    def _deliver(self, deliver: wire.Deliver) -> None:
        if self.pending_replies.abandoned:
            self.sending.forget_abandoned()
        try:
            if self.inbox.deliver(deliver):
                self._resyncs = 0
        except ConnectionLost as gap:
            self._resync(gap)

    def _ignore(self, message: wire.Message) -> None:
        """Ignore a command from before the last HELLO, or without need of an answer."""

    def _pinged(self, ping: wire.Ping) -> None:
        if ping.token:
            self.outbox.say(wire.Received(ping.token))

    def _refused(self, refused: wire.Error) -> None:
        error = from_wire(*refused)
        if refused.about == _HELLO and not (self.state is State.READY and refused.ref == self._attempt):
            if self._is_current(refused.ref):
                self._hello_refused(error)
        elif refused.code in _RESYNC_CODES:
            if refused.about in _REFUSED and not refused.ref:
                self.events.append(Refusal(error))
            if self.state is State.READY:
                self._resync(error)
        elif (refuse := _REFUSED.get(refused.about)) is None or not refuse(self, error):
            self.events.append(Refusal(error))

    def _hello_refused(self, error: MalamuteError) -> None:
        if not isinstance(error, NotPrimary):
            self._end(error)
            return
        self._drop("the broker is not the primary of its pair any more")
        self._enter(State.LOST)
        self._resyncs = 0
        self.moved = error
        self.events.append(Moved(error.text, error.urls))

    def _command_refused(self, error: MalamuteError) -> bool:
        command = self.outbox.refused(error.ref, error)
        self.pending_replies.refused(command)
        if command is None or command.completes:
            self.inbox.reply_refused(None if command is None else command.completes)
        # Workers seldom look at the receipts of their replies, so those are reported as an event too.
        return command is not None and command.awaited and error.about != _REPLY

    def _source_refused(self, error: MalamuteError) -> bool:
        return self.inbox.refused(error.ref, error)

    def _drain_refused(self, error: MalamuteError) -> bool:
        # The drain holds in spite of the error: the broker only cannot store that released messages were
        # unread.
        self._drained(error.ref)
        return False

    def _change_refused(self, error: MalamuteError) -> bool:
        return self.questions.change_refused(error.ref, error)

    def _query_refused(self, error: MalamuteError) -> bool:
        return self.questions.refused(error.ref, error)


def _opcode(message: type[Any]) -> int:
    return BY_TYPE[message].opcode


_HELLO, _REPLY, _SUBSCRIBE, _OFFER, _BYE, _WITHDRAW, _DRAIN, _WATCH, _CANCEL = map(
    _opcode,
    (
        wire.Hello,
        wire.Reply,
        wire.Subscribe,
        wire.Offer,
        wire.Bye,
        wire.Withdraw,
        wire.Drain,
        wire.Watch,
        wire.Cancel,
    ),
)
_CHANGES = frozenset(map(_opcode, (wire.Change, wire.Put, wire.Delete, wire.Add)))
_RESYNC_CODES = frozenset({405, 421})
"""The broker does not know the session, or a number left a gap: no outcome of the command it is about."""

_REFUSED: dict[int, Callable[[ClientSession, MalamuteError], bool]] = {
    _opcode(wire.Publish): ClientSession._command_refused,
    _opcode(wire.Forward): ClientSession._command_refused,
    _opcode(wire.Send): ClientSession._command_refused,
    _opcode(wire.Request): ClientSession._command_refused,
    _REPLY: ClientSession._command_refused,
    _opcode(wire.Commit): ClientSession._command_refused,
    _SUBSCRIBE: ClientSession._source_refused,
    _OFFER: ClientSession._source_refused,
    _opcode(wire.Query): ClientSession._query_refused,
    _opcode(wire.Get): ClientSession._query_refused,
    _WATCH: ClientSession._source_refused,
    **dict.fromkeys(_CHANGES, ClientSession._change_refused),
    _DRAIN: ClientSession._drain_refused,
    _WITHDRAW: ClientSession._query_refused,
}
"""Handlers of refusals, by the refused command."""

_Handlers = dict[type[Any], Callable[[ClientSession, Any], None]]

_STALE: _Handlers = {
    wire.Ok: ClientSession._changed,
    wire.Deliver: ClientSession._ignore,
    wire.Gap: ClientSession._ignore,
    wire.Switch: ClientSession._ignore,
    wire.Recall: ClientSession._ignore,
    wire.Changed: ClientSession._ignore,
    wire.Ping: ClientSession._ignore,
    wire.Pong: ClientSession._ignore,
    wire.Stored: ClientSession._stored,
    wire.Answer: lambda session, answer: session.questions.answered(answer.ref, answer.value),
    wire.Error: ClientSession._refused,
}
"""Commands that count without a WELCOME: only outcomes of earlier commands."""

_HANDLERS: dict[State, _Handlers] = {
    State.LOST: {**_STALE, wire.Welcome: ClientSession._ignore},
    State.OPENING: {**_STALE, wire.Welcome: ClientSession._welcome},
    State.READY: {
        wire.Welcome: ClientSession._ignore,
        wire.Ok: ClientSession._ok,
        wire.Error: ClientSession._refused,
        wire.Stored: ClientSession._stored,
        wire.Deliver: ClientSession._deliver,
        wire.Gap: lambda session, gap: session.inbox.gap(gap),
        wire.Switch: lambda session, switch: session.inbox.switch(switch),
        wire.Recall: lambda session, recall: session.inbox.recall(recall),
        wire.Changed: lambda session, changed: session.inbox.changed(changed),
        wire.Answer: lambda session, answer: session.questions.answered(answer.ref, answer.value),
        wire.Ping: ClientSession._pinged,
        wire.Pong: lambda session, pong: session.questions.pong(),
    },
    State.ENDED: {message: ClientSession._ignore for message in (*_STALE, wire.Welcome)},
}
