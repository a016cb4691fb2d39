"""Socket of the broker: one ROUTER with several listeners, and messages kept for peers with a full pipe.

`ROUTER_MANDATORY` makes a send report its outcome. "Host unreachable" means that the peer is gone.
"Would block" means that its pipe is full: the message is kept, in order and up to a limit, the core treats
the peer as one without credit, and the transport retries until the pipe has room. The same happens to a peer
with more unread bytes than `flow` allows. `Stalls` finds peers that stay connected and are dead; where the
system does not report the last byte of a connection, libzmq's heartbeats do.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any, cast

import zmq
from zmq import backend

from malamute.core.identity.access import ANONYMOUS, Principal
from malamute.errors import AccessRefused, ConfigError, MalamuteError, TooLarge, UnexpectedCommand
from malamute.protocol.batch import Frame
from malamute.protocol.codec import PROTOCOL_2, Codec
from malamute.protocol.limits import BATCH_MESSAGES_MAX, RECORD_LARGE_BYTES
from malamute.protocol.messages import BY_TYPE, Error, Hello, Message, Ping, Received, Welcome
from malamute.server.authentication import Authenticator, address_of
from malamute.server.bearers import NOT_ASKED
from malamute.server.flow import DEFAULT, Flows, Windows
from malamute.server.guard import (
    NO_HELLO,
    RULES,
    TOO_MANY_BYTES,
    TOO_MANY_FRAMES,
    Guard,
    Rules,
    descriptor_of,
)
from malamute.server.intake import ALLOWANCE, IDLE_SECONDS, Allowance, Intake, sealed_size_of, size_of
from malamute.server.passwords import Busy
from malamute.server.stalls import CAN_TELL, FOR_EVER, Patience, Stalls

ELSEWHERE = "end the program that listens there, or take another address: --listen tcp://127.0.0.1:9998"
"""The next step where an address cannot be bound."""

INTAKE_MESSAGES = 2_000
"""Commands that one iteration reads."""

RETRY_SECONDS = 0.010
"""Seconds between two retries of full pipes."""

RETRIES_MAX = 64
"""Full pipes that one iteration retries, since all other peers wait for that."""

TURN_SECONDS = 0.001
"""Seconds until the next full pipes are retried."""

INTAKE_BYTES = 1 << 19
"""Bytes that one iteration reads; the command that passes it is the last."""

KEPT_MESSAGES = 1_000
"""Messages kept for a full peer; past it, the connection is ended."""

KEPT_BYTES = 16 * 1024 * 1024
"""Bytes kept for a full peer; past it, the connection is ended."""

KEPT_BYTES_ALL = 256 * 1024 * 1024
"""Bytes kept for all such peers; with more, each may have little."""

KEPT_BYTES_CROWDED = 256 * 1024
"""Bytes kept for one of them then."""

PARTS_MAX = BATCH_MESSAGES_MAX + 1
"""Frames of one command: itself, and each of its records by itself."""

SKIP_PARTS = 10_000
"""Frames of a command with too many that one iteration reads and drops."""

SHARED_BYTES = 8_192
"""A frame of this size or more that goes to several peers is shared instead of copied."""


class AllUnsent:
    """Messages kept for all peers together."""

    size_bytes = 0


class Unsent(deque[Sequence[Frame]]):
    """The commands that wait for one peer, in order. `all` counts those of all peers."""

    def __init__(self, all: AllUnsent) -> None:  # noqa: A002
        super().__init__()
        self.size_bytes = 0
        self.farewell: Sequence[Frame] | None = None
        """Newest command with the reason why a session has ended, or was not opened."""
        self._all = all

    def add(self, frames: Sequence[Frame], message: Message) -> None:
        """Append a command."""
        self.append(frames)
        self._count(sum(map(len, frames)))
        if type(message) is Error and message.about == _HELLO:
            self.farewell = frames

    def remove_first(self) -> None:
        """Remove the first command."""
        frames = self.popleft()
        self._count(-sum(map(len, frames)))
        if frames is self.farewell:
            self.farewell = None

    def drop(self) -> None:
        """Remove all commands."""
        self.clear()
        self._count(-self.size_bytes)

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._all.size_bytes += size_bytes

    @property
    def too_large(self) -> bool:
        """Whether more is kept than the limits of one peer."""
        crowded = self._all.size_bytes > KEPT_BYTES_ALL
        return len(self) > KEPT_MESSAGES or self.size_bytes > (KEPT_BYTES_CROWDED if crowded else KEPT_BYTES)


_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Flags of a send, as plain numbers: a combination of pyzmq's enumerations takes longer than the send."""

_HELLO = BY_TYPE[Hello].opcode

_OF_CONNECTIONS = frozenset((Hello, Received))


_GIVEN_UP = Error(UnexpectedCommand.code, "too much was waiting for this client: say HELLO again")


class Transport:
    """Edge of the ROUTER socket. `lost` has the peers that are gone, until they are taken.

    A peer that reads nothing, or is silent, for longer than `patience` is disconnected. The first of the
    `codecs` is that of each peer whose first bytes are the signature of none of the others.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        options: dict[int, int],
        windows: Windows = DEFAULT,
        rules: Rules = RULES,
        patience: Patience = FOR_EVER,
        allowance: Allowance = ALLOWANCE,
        codecs: Sequence[Codec] = (PROTOCOL_2,),
        authenticator: Authenticator | None = None,
    ) -> None:
        self._begin(windows, patience, allowance, codecs, authenticator)
        self.socket = context.socket(zmq.ROUTER)
        # Without pyzmq's checks of other kinds of sockets at each frame.
        self._send = partial(backend.Socket.send, self.socket)
        self._has_input = [(self.socket, int(zmq.POLLIN))]
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.guard = Guard(context, self.socket, rules)
        self.endpoints: list[str] = []
        self._shared: tuple[Any, Any] = (None, None)
        self._now = 0.0
        self._skipping = False
        """Whether the rest of a command is still to be read, and dropped."""

    def _begin(
        self,
        windows: Windows,
        patience: Patience = FOR_EVER,
        allowance: Allowance = ALLOWANCE,
        codecs: Sequence[Codec] = (PROTOCOL_2,),
        authenticator: Authenticator | None = None,
    ) -> None:
        """Reset to a state without any peer."""
        self._authenticator = authenticator
        self._codec, *self._codecs = codecs
        self._encode_most = self._codec.encode
        self._chosen: dict[bytes, Codec] = {}
        """Codec of each peer with another one than the first."""
        self.drained = True
        """Whether the last `receive` found no more."""
        self._stalls = Stalls(patience)
        self.intake = Intake(allowance, lambda descriptor: self.guard.end(descriptor, TOO_MANY_BYTES))
        self.blocked: dict[bytes, Unsent] = {}
        self.unsent = AllUnsent()
        self.lost: list[bytes] = []
        self._ended: dict[bytes, None] = {}
        """Peers whose connections have ended, and which may have unread commands."""
        self.flows = Flows(windows)
        self._stuck: set[bytes] = set()
        """Blocked peers from which a RECEIVED has to come first."""
        self._turns: deque[bytes] = deque()
        """Blocked peers still to be retried in this round."""
        self._first: dict[bytes, deque[Sequence[Frame]]] = {}
        """Commands sent before all kept ones, however many bytes are unread: a peer after HELLO answers no
        PING before the one behind its WELCOME."""
        self._hellos: dict[bytes, int] = {}
        """Connections with a HELLO in this iteration, by their descriptors."""
        self._descriptors: dict[bytes, int] = {}
        """Connection of each welcomed peer, where it is known."""
        self._peers: dict[int, bytes] = {}
        self._promises: dict[bytes, float] = {}
        """Most seconds between two commands, as promised by the HELLOs of this iteration."""
        self._heartbeats: dict[bytes, float] = {}
        """Promised seconds of each welcomed peer."""
        self._principal = ANONYMOUS
        """Principal of the last HELLO."""
        self._origin = ""
        """Address of the last HELLO."""
        self.owner_of: Callable[[bytes], str | None] = lambda peer: None
        """User of the open session of a peer, with authentication. With `ROUTER_HANDOVER` a routing id is the
        newest connection's, so each command is compared with it."""

    def bind(
        self, endpoint: str, ipc_mode: int = 0o600, mechanism: str = "null", secret_key: bytes = b""
    ) -> str:
        """Listen on an endpoint; returns it with the port that was chosen. Raises `ConfigError`.

        The file of a socket has this mode from its first moment. An authenticator is asked about each
        connection, on listeners with the mechanism `null` as well.
        """
        _check_free(endpoint)
        before = os.umask(0o777 & ~ipc_mode)
        # The connections of a listener have the options of when it was bound, these too.
        if self._authenticator is not None:
            self.socket.setsockopt(zmq.ZAP_DOMAIN, mechanism.encode())
        self.socket.setsockopt(zmq.PLAIN_SERVER, mechanism == "plain")
        if mechanism.startswith("curve"):
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        interval_ms = self.socket.getsockopt(zmq.HEARTBEAT_IVL)
        if CAN_TELL and endpoint.startswith("tcp:"):
            # The connections of a listener have the options of when it was bound.
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            fault = zmq.strerror(error.errno or 0).lower()
            raise ConfigError(f"cannot listen on {endpoint}: {fault}", hint=ELSEWHERE) from error
        finally:
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
            os.umask(before)
        bound = cast(bytes, self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        if mechanism.startswith("curve"):
            self.guard.sealed.add(bound.encode())
        # An abstract socket is named with a NUL, which has no key.
        self.endpoints.append(endpoint if endpoint.startswith("ipc://@") else bound)
        return self.endpoints[-1]

    @property
    def inputs(self) -> Sequence[Any]:
        """Sockets to poll: the ROUTER, the monitor of its connections, and the authenticator."""
        asking = self._authenticator.inputs if self._authenticator is not None else ()
        return self.socket, self.guard.monitor, *asking

    def arrivals(self) -> int:
        """Descriptor that has input with the next byte on any connection, while the intake rests; or -1."""
        return self.intake.fileno() if self.intake.resting else -1

    def arrived(self, now: float) -> float:
        """Wake the intake. Returns the most seconds to wait for a command."""
        self.intake.wake(now)
        return IDLE_SECONDS

    def watch(self, now: float, ready: Collection[Any]) -> None:
        """Supervise the connections. `ready` has the monitor if that has events."""
        if self.socket not in ready:
            self.guard.read_until = now
        elif self.drained:
            # The input that woke the loop came since then.
            self.guard.read_until = self._now
        self._now = now
        if self._ended and self.drained:
            self._lose_ended()
        if self.guard.monitor in ready:
            self._update()
        if self._ended and not zmq.zmq_poll(self._has_input, 0):
            self._lose_ended()
        asking = self._authenticator
        if asking is not None and any(source in ready for source in asking.inputs):
            asking.update(now)
        self.guard.check(now)
        self.intake.check(now)

    def _lose_ended(self) -> None:
        """Move peers whose connections have ended to `lost`: all their commands were read."""
        self.lost += self._ended
        self._ended.clear()

    def next_check(self, now: float) -> float | None:
        """Return the time of the next `watch` and `retry` without input, or None."""
        if self._ended:
            return now
        guard, intake = self.guard.next_check(), self.intake.next_check()
        due = guard if intake is None or (guard is not None and guard < intake) else intake
        if len(self.blocked) > len(self._stuck):
            retry = now + (TURN_SECONDS if self._turns else RETRY_SECONDS)
            return retry if due is None or retry < due else due
        return due

    def owns(self, peer: bytes) -> bool:
        """Return true: any routing id may be that of a connection to the ROUTER."""
        return True

    def principal(self, peer: bytes) -> Principal:
        """Return the principal of the last HELLO; anonymous without authentication."""
        return self._principal

    def origin(self, peer: bytes) -> str:
        """Return the address of the last HELLO: an IP address, or `localhost:UID:GID:PID` over IPC."""
        return self._origin

    def _update(self) -> None:
        guard = self.guard
        guard.update(self._now)
        for descriptor in guard.ended:
            peer = self._peers.pop(descriptor, None)
            # A peer whose session was ended has none here.
            if peer is not None and self._descriptors.get(peer, descriptor) == descriptor:
                self._descriptors.pop(peer, None)
                self._disconnected(peer)
                self._ended[peer] = None
        guard.ended.clear()

    def _disconnected(self, peer: bytes) -> None:
        """Note the end of a connection. Kept messages show at their retry that the peer is gone."""
        self.intake.forget(peer)
        self._stalls.forget(peer)
        self.flows.close(peer)
        self._stuck.discard(peer)
        self._chosen.pop(peer, None)

    def receive(self) -> Iterator[tuple[bytes, Message | Exception]]:  # noqa: C901  # a call would cost
        """Return commands of peers, up to the limits of an iteration: messages, or errors in their place.

        An error that is no `MalamuteError` is a fault of the decoder.
        """
        receive, descriptors = self.socket.recv, self._descriptors
        taken, taken_sealed = self.intake.taken, self.intake.taken_sealed
        decode, choose, asked = self._codec.decode, bool(self._codecs), self._authenticator is not None
        size_bytes = 0
        self.drained = False
        self._hellos.clear()
        self._promises.clear()
        if self._authenticator is not None:
            yield from self._proved(self._authenticator)
        if self._skipping and not self._skip():
            return
        for count in range(INTAKE_MESSAGES):
            # Most iterations are of one command. A poll is three times faster than a refused read; with many
            # commands, no poll is.
            if count == 1 and not zmq.zmq_poll(self._has_input, 0):
                self.drained = True
                return
            try:
                peer = receive(_LAST)
            except zmq.Again:
                self.drained = True
                return
            # Libzmq's own frame says whether another follows, which to ask the socket takes longer, and on
            # which connection it came.
            part = receive(copy=False)
            frames: list[Any] = [part.bytes]
            while part.more:
                # The core and the store know bytes and views of bytes, not libzmq's own frames. A small frame
                # is a part of the buffer that libzmq read it into, and would hold on to all of that.
                part = receive(copy=False)
                frames.append(part.buffer if len(part) >= RECORD_LARGE_BYTES else part.bytes)
                if len(frames) > PARTS_MAX:
                    yield peer, self._refuse_parts(part)
                    return
            size = size_of(frames) if len(frames) > 1 else len(frames[0]) + (2 if len(frames[0]) < 256 else 9)
            size_bytes += size
            if peer in taken:
                taken[peer] += size
            elif peer in taken_sealed:
                taken_sealed[peer] += sealed_size_of(frames)
            try:
                message = self._choose(peer, frames[0]).decode(frames) if choose else decode(frames)
            except Exception as error:
                yield peer, error
            else:
                if type(message) in _OF_CONNECTIONS:
                    heard = self._heard(peer, message, part)
                    if heard is not None:
                        yield peer, heard
                elif asked and self._is_foreign(peer, part):
                    yield peer, self._refuse_foreign(peer, part)
                else:
                    if peer not in descriptors and peer in self.flows:
                        self._connected(peer, descriptor_of(part))
                    yield peer, message
            if size_bytes >= INTAKE_BYTES:
                return

    def _refuse_parts(self, part: Any) -> MalamuteError:
        """Drop the rest of a command with too many frames, and end its connection."""
        descriptor = descriptor_of(part)
        if descriptor >= 0:
            self.guard.end(descriptor, TOO_MANY_FRAMES)
        self._skipping = bool(part.more)
        if self._skipping:
            self._skip()
        return TooLarge(f"a command has {PARTS_MAX} frames at the most")

    def _skip(self) -> bool:
        """Read and drop frames of a command, up to a number of them. Returns whether all are read."""
        for _ in range(SKIP_PARTS):
            if not self.socket.recv(copy=False).more:
                self._skipping = False
                return True
        return False

    def _proved(self, authenticator: Authenticator) -> Iterator[tuple[bytes, Message | Exception]]:
        """Return the HELLOs whose proofs were verified."""
        for (peer, hello, _, address, descriptor), outcome in authenticator.bearers.pop(self._now):
            if isinstance(outcome, MalamuteError):
                yield peer, outcome
            else:
                self._principal, self._origin = outcome, address
                self._ended.pop(peer, None)
                self._promises[peer] = hello.heartbeat / 1000
                self._hellos[peer] = descriptor
                yield peer, hello

    def _heard(self, peer: bytes, message: Message, part: Any) -> Message | MalamuteError | None:
        """Handle a command about a connection. Returns the message, or its error.

        None is for a HELLO that waits for its proof, or whose client has to connect again.
        """
        if isinstance(message, Received) and self._authenticator is not None and self._is_foreign(peer, part):
            return self._refuse_foreign(peer, part)
        if isinstance(message, Received):
            self.received(peer, message.token)
            return message
        # The event of the connection came before this, and has to be read first.
        self._update()
        if isinstance(message, Hello):
            try:
                self._codec_of(peer).check_hello(peer, message)
                principal = self._identify(peer, message, part)
            except Busy:
                self.guard.end(descriptor_of(part))
                return None
            except MalamuteError as error:
                error.about, error.ref = _HELLO, message.attempt
                return error
            if principal is None:
                return None
            self._principal = principal
            self._promises[peer] = message.heartbeat / 1000
            self._origin = address_of(part)
            self._ended.pop(peer, None)
        self._hellos[peer] = descriptor_of(part)
        return message

    def _identify(self, peer: bytes, hello: Hello, part: Any) -> Principal | None:
        if self._authenticator is not None:
            return self._authenticator.identify(peer, hello, part, self._now)
        if hello.token:
            raise AccessRefused(NOT_ASKED)
        return ANONYMOUS

    def _is_foreign(self, peer: bytes, part: Any) -> bool:
        owner = self.owner_of(peer)
        if owner is None:
            return False
        assert self._authenticator is not None
        return owner != self._authenticator.user(peer, part)

    def _refuse_foreign(self, peer: bytes, part: Any) -> MalamuteError:
        """Refuse a command in the session of another user, whose routing id the peer knows."""
        assert self._authenticator is not None
        self._authenticator.note_foreign(part)
        return AccessRefused("this session belongs to another user")

    def _connected(self, peer: bytes, descriptor: int) -> None:
        """Note a session on a connection."""
        self._descriptors[peer] = descriptor
        if descriptor >= 0:
            self._peers[descriptor] = peer
            self.guard.welcome(descriptor)
            if self.guard.is_tcp(descriptor):
                self.intake.begin(peer, descriptor, self._now, sealed=self.guard.is_sealed(descriptor))

    def _choose(self, peer: bytes, first: bytes) -> Codec:
        """Return the codec of a peer."""
        chosen = self._chosen.get(peer)
        if chosen is None:
            chosen = next((codec for codec in self._codecs if first.startswith(codec.signature)), None)
            if chosen is None:
                return self._codec
            self._chosen[peer] = chosen
        return chosen

    def _codec_of(self, peer: bytes) -> Codec:
        return self._chosen.get(peer, self._codec)

    def _encode(self, peer: bytes, message: Message) -> Sequence[Frame]:
        return self._codec_of(peer).encode(message)

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a message, or keep it for a full peer. Returns whether the peer blocks since now."""
        unsent = self.blocked.get(peer)
        if type(message) is Ping:
            self._probe(peer)
        if type(message) is Welcome:
            return self._welcome(peer, self._encode(peer, message))
        if unsent is None:
            frames = (
                self._chosen[peer].encode(message) if peer in self._chosen else self._encode_most(message)
            )
            # As `_pass_on`, which would be another call.
            if self._transmit(peer, frames):
                if token := self.flows.sent(peer, sum(map(len, frames))):
                    self._ask(peer, token)
                return peer in self.blocked
            unsent = self.blocked[peer] = Unsent(self.unsent)
        elif type(message) is Ping:
            # A probe finds out whether the peer is there. One that waited in line would not.
            self._transmit(peer, self._encode(peer, message))
            return False
        else:
            frames = self._encode(peer, message)
        unsent.add(frames, message)
        if unsent.too_large:
            # The connection is still there. When it has room, the peer learns why its session has ended, or
            # that it has to begin anew, but behind the WELCOME that it may wait for: it ignores messages
            # before.
            first = self._first.get(peer) or deque()
            last_word = unsent.farewell or self._encode(peer, _GIVEN_UP)
            self._give_up(peer)
            if last_word not in first:
                first.append(last_word)
            self._first[peer] = first
            self.blocked[peer] = Unsent(self.unsent)
        return True

    def _probe(self, peer: bytes) -> None:
        """Probe whether a peer reads its connection."""
        descriptor = self._descriptors.get(peer, -1)
        heartbeat = self._heartbeats.get(peer, 0.0)
        if descriptor >= 0 and self._stalls.has_stalled(peer, descriptor, monotonic(), heartbeat):
            self.guard.end(descriptor, NO_HELLO)

    def _welcome(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Begin a session, and drop messages kept for the previous one."""
        self._unblock(peer)
        if self._authenticator is not None:
            self._authenticator.bearers.welcomed(peer)
        if peer in self._hellos:
            self._connected(peer, self._hellos[peer])
        self._heartbeats[peer] = self._promises.get(peer, 0.0)
        token = self.flows.open(peer)
        self._send_first(peer, frames)
        token = self.flows.sent(peer, sum(map(len, frames))) or token
        if token:
            self._ask(peer, token)
        return peer in self.blocked

    def _pass_on(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send now, with a PING now and then. Returns False if the pipe is full."""
        if not self._transmit(peer, frames):
            return False
        token = self.flows.sent(peer, sum(map(len, frames)))
        if token:
            self._ask(peer, token)
        return True

    def _ask(self, peer: bytes, token: int) -> None:
        """Send a PING; if the window of the peer is full, it blocks until the answer."""
        if self._send_first(peer, self._encode(peer, Ping(token))) and self.flows.is_full(peer):
            self.blocked.setdefault(peer, Unsent(self.unsent))
            self._stuck.add(peer)

    def _send_first(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send a command before all kept ones. Returns whether it is sent now."""
        if peer not in self._first and self._transmit(peer, frames):
            return True
        self._first.setdefault(peer, deque()).append(frames)
        self.blocked.setdefault(peer, Unsent(self.unsent))
        return False

    def received(self, peer: bytes, token: int) -> None:
        """Handle the answer to a PING, and unblock peers with room."""
        was_crowded = self.flows.is_crowded
        self.flows.received(peer, token)
        if was_crowded and not self.flows.is_crowded:
            self._stuck.clear()
        elif not self.flows.is_full(peer):
            self._stuck.discard(peer)

    def retry(self) -> list[bytes]:
        """Send kept messages, to some peers in turn. Returns those with none left."""
        if len(self.blocked) <= len(self._stuck):
            return []
        if not self._turns:
            self._turns.extend(self.blocked.keys() - self._stuck)
        turn = [self._turns.popleft() for _ in range(min(len(self._turns), RETRIES_MAX))]
        return [
            peer for peer in turn if peer in self.blocked and peer not in self._stuck and self._advance(peer)
        ]

    def _advance(self, peer: bytes) -> bool:
        """Send kept messages to a peer until it is full. Returns whether none is left."""
        unsent = self.blocked[peer]
        while first := self._first.get(peer):
            if not self._transmit(peer, first[0]):
                return False
            first.popleft()
        self._first.pop(peer, None)
        while self.blocked.get(peer) is unsent and peer not in self._first:
            if self.flows.is_full(peer):
                self._stuck.add(peer)
                return False
            if not unsent:
                del self.blocked[peer]
                return True
            if not self._pass_on(peer, unsent[0]):
                return False
            if unsent:  # a peer that is gone has none any more
                unsent.remove_first()
        return False

    def pop_lost(self) -> list[bytes]:
        """Return the peers of `lost`, and empty it."""
        lost, self.lost = [*dict.fromkeys(self.lost)], []
        return lost

    def forget(self, peer: bytes) -> None:
        """Keep only the message with the reason why a session has ended, or else the last one.

        Later commands are refused, which must not hide the reason: the peer would begin another session.
        """
        unsent = self.blocked.get(peer)
        if unsent:
            last_word = unsent.farewell or unsent[-1]
            unsent.drop()
            self._first.setdefault(peer, deque()).append(last_word)
            self._stuck.discard(peer)
        if self._authenticator is not None:
            self._authenticator.bearers.forget(peer)
        self._stalls.forget(peer)
        self._heartbeats.pop(peer, None)
        self._chosen.pop(peer, None)
        self.intake.forget(peer)
        descriptor = self._descriptors.pop(peer, -1)
        if descriptor >= 0:
            self.guard.dismiss(descriptor, self._now)

    def close(self, linger_ms: int) -> None:
        """Close the socket; messages on their way have `linger_ms` milliseconds to leave."""
        self.guard.close()
        self.intake.close()
        self.socket.close(linger=linger_ms)
        if self._authenticator is not None:
            self._authenticator.close()

    def _transmit(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send now. Returns False if the pipe is full; a peer that is gone counts as sent."""
        send = self._send
        try:
            send(peer, _MORE)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._gone(peer)
            return True
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            flags = _LAST if place == last else _MORE
            if len(frame) < SHARED_BYTES:
                send(frame, flags)
            else:
                send(self._share(frame), flags, copy=False)
        return True

    def _share(self, frame: Frame) -> Any:
        """Return a frame of libzmq, which counts references: the same one for each peer in a row."""
        if self._shared[0] is not frame:
            # Copied once: libzmq would otherwise call back into Python when the last peer is done.
            self._shared = (frame, zmq.Frame(frame, copy=len(frame) < RECORD_LARGE_BYTES))
        return self._shared[1]

    def _gone(self, peer: bytes) -> None:
        """Remove a peer without a connection, and its unread bytes."""
        self.flows.close(peer)
        self._chosen.pop(peer, None)
        self._give_up(peer)

    def _give_up(self, peer: bytes) -> None:
        self._unblock(peer)
        # Each send finds it out again, so it may be there; to look would take as long as there are others.
        self.lost.append(peer)

    def _unblock(self, peer: bytes) -> bool:
        """Drop the messages kept for a peer. Returns whether it was blocked."""
        self._stuck.discard(peer)
        self._first.pop(peer, None)
        unsent = self.blocked.pop(peer, None)
        if unsent is not None:
            unsent.drop()
        return unsent is not None


def _check_free(endpoint: str) -> None:
    """Raise `ConfigError` if another process listens there, or the path has a file that is no socket.

    libzmq removes any file at the path of a socket, and listens.
    """
    path = endpoint.removeprefix("ipc://")
    if path == endpoint or path.startswith("@"):
        return
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(
                f"cannot listen on {endpoint}: there is a file that is no socket", hint=ELSEWHERE
            )
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(path)
    except (BlockingIOError, PermissionError):  # so many wait there already, or it is another user's
        pass
    except OSError:  # there is none, or that of a process that has ended; libzmq reports other faults
        return
    raise ConfigError(f"cannot listen on {endpoint}: address already in use", hint=ELSEWHERE)
