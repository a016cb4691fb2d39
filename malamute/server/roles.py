"""A broker in a pair: the process goes from role to role, each of which is an object that ends.

A primary is a broker as any other, on a store whose outcomes the pair releases: a takeover is a start of a
broker on the directory of the standby, in the same process. A node that does not serve listens at the same
endpoints, and answers HELLO with where the primary is. Such a node proves nobody, and reads nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
import zmq

from malamute.config import Config
from malamute.config.access_files import AccessFiles
from malamute.errors import MalamuteError, NotPrimary, UnexpectedCommand
from malamute.journal.disk import DiskStore
from malamute.journal.tail import Tail
from malamute.pair.node import PairNode, Served
from malamute.pair.register import Register
from malamute.pair.rules import Mode, PairTimes
from malamute.protocol.codec import PROTOCOL_2, encode
from malamute.protocol.messages import BY_TYPE, Hello, error_message
from malamute.server.loop import Loop
from malamute.server.release import Primary, ReleaseGate
from malamute.server.supervisor import Supervisor

Context = zmq.Context[zmq.Socket[bytes]]

OpenLoop = Callable[[Context, Primary, Supervisor], Loop]

LOOK_SECONDS = 0.02
"""The pause between two looks at a role that is about to change.

Not an event: a handler of a signal ends these waits, too, and may not set one safely.
"""

REFUSING_SECONDS = 0.1
"""The longest wait for a command at a node that does not serve, which may take over behind it."""

HANDING_OVER_SECONDS = 5.0
LINGER_MS = 200
FRAME_BYTES_MAX = 1 << 16
"""The size of a frame to a node that does not serve: HELLO has less."""

SLOW_SECONDS = 0.5
"""Longest pause before a write that a catch-up needs."""

log = structlog.get_logger("malamute")


class StandbyDoor:
    """The listeners of a node that does not serve. Raises `ConfigError`."""

    def __init__(self, config: Config, bind: Callable[[zmq.Socket[bytes], str], None]) -> None:
        self._context: Context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")
        self._socket.set(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        self._socket.linger = LINGER_MS
        keys = AccessFiles.read(config.access).keys
        for mechanism, endpoint in config.listen.listeners:
            self._socket.set(zmq.PLAIN_SERVER, mechanism == "plain")
            if mechanism.startswith("curve"):
                self._socket.set(zmq.CURVE_SECRETKEY, keys.get(mechanism, "").encode())
                self._socket.set(zmq.CURVE_SERVER, 1)
            bind(self._socket, endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._zap, zmq.POLLIN)

    def answer(self, refusal: NotPrimary, seconds: float) -> None:
        """Wait for commands, and refuse them."""
        ready = dict(self._poller.poll(int(seconds * 1000)))
        if self._zap in ready:
            # Everybody is let in: nobody gets more than an error.
            version, request, *_ = self._zap.recv_multipart()
            self._zap.send_multipart([version, request, b"200", b"", b"", b""])
        if self._socket in ready:
            peer, *frames = self._socket.recv_multipart()
            with suppress(zmq.ZMQError):
                self._socket.send_multipart([peer, *self._answer_to(frames, refusal)], zmq.NOBLOCK)

    @staticmethod
    def _answer_to(frames: list[bytes], refusal: NotPrimary) -> list[Any]:
        try:
            message = PROTOCOL_2.decode(frames)
        except MalamuteError as error:
            return encode(error_message(error))
        about = BY_TYPE[type(message)].opcode
        if isinstance(message, Hello):
            return encode(error_message(refusal, about, message.attempt))
        return encode(error_message(UnexpectedCommand("expected HELLO first"), about))

    def close(self) -> None:
        """Close the listeners."""
        self._socket.close()
        self._zap.close()
        self._context.term()


class PairBroker:
    """The broker of this process, in its pair: `run` until `stop`. Raises `ConfigError` or `StoreError`."""

    def __init__(self, config: Config, register: Register, open_loop: OpenLoop) -> None:
        pair = config.pair
        self._config = config
        self._open_loop = open_loop
        self._loop: Loop | None = None
        self._serves = 0
        self._is_stopping = False
        self.node = PairNode(
            pair.name,
            config.storage.directory,
            size=config.storage.size,
            listen=pair.listen,
            urls=pair.advertise,
            register=register,
            mode=Mode(pair.mode),
            times=PairTimes(lease=pair.lease, takeover=pair.takeover),
            say=self._say,
            changed=self._look,
        )

    def stop(self) -> None:
        """End `run` soon: a primary hands over first. For any thread, and for a signal handler."""
        self._is_stopping = True
        loop = self._loop
        if loop is not None:
            self.node.switch(loop.stop)

    def reload(self) -> None:
        """Reload the configuration of a primary soon."""
        if self._loop is not None:
            self._loop.reload()

    def run(self, started: Callable[[list[str]], None], stopping: Callable[[], None]) -> None:
        """Take part in the pair until stopped. `started` is called once clients get an answer."""
        self.node.start()
        is_new = True
        try:
            while not self._is_stopping:
                timeline = self.node.role().timeline
                if timeline:
                    self._serve(timeline, started if is_new else lambda endpoints: None, stopping)
                else:
                    self._refuse(started if is_new else lambda endpoints: None)
                is_new = False
        finally:
            self.node.stop()

    def _say(self, text: str, is_loud: bool) -> None:
        (log.warning if is_loud else log.info)("pair", reason=text, node=self._config.pair.name)

    def _look(self) -> None:
        """End the broker whose time is over. Called by the thread of the node."""
        loop, serves = self._loop, self._serves
        if loop is None:
            return
        try:
            role = self.node.role()
        except BaseException:  # raised again by `run`
            loop.abandon()
            return
        if role.timeline != serves:
            if role.drains:
                loop.stop()
            else:
                loop.abandon()

    def _serve(
        self, timeline: int, started: Callable[[list[str]], None], stopping: Callable[[], None]
    ) -> None:
        context: Context = zmq.Context(self._config.listen.io_threads)
        context.set(zmq.MAX_SOCKETS, 1024)
        tail = Tail()

        def append(record: bytes, lsn: int) -> None:
            tail.append(record, lsn)
            self.node.wake()

        def opened(store: DiskStore, release: ReleaseGate) -> None:
            release.on_stored = self.node.stored
            release.before_write = lambda: tail.wait(SLOW_SECONDS)
            self.node.opened(Served(store, tail, release.advance, store.lsn))

        pair = Primary(timeline, tail.add, append, opened, self._config.pair.advertise)
        try:
            loop = self._open_loop(context, pair, Supervisor.of(os.environ))
        except BaseException:  # raised again; without it, the listeners would stay bound
            context.destroy(linger=0)
            raise
        self._serves, self._loop = timeline, loop
        log.info("serves", timeline=timeline, endpoints=loop.endpoints)
        self._look()
        if self._is_stopping:
            self.node.switch(loop.stop)
        started(loop.endpoints)
        self._await_release(timeline)
        loop.run(stopping if self._is_stopping else lambda: None)
        self._loop = None
        context.term()
        if self.node.role().drains:
            self.node.drained()
            self._await_hand_over()
        self.node.closed()

    def _await_release(self, timeline: int) -> None:
        """Wait until the standby has all that a client could learn of: it would be a confirmation.

        Clients are connected meanwhile, and get no answer yet.
        """
        while not self._is_stopping:
            role = self.node.role()
            if role.admits or role.timeline != timeline:
                return
            time.sleep(LOOK_SECONDS)

    def _await_hand_over(self) -> None:
        ends = time.monotonic() + HANDING_OVER_SECONDS
        while self.node.role().details["role"] == "primary" and time.monotonic() < ends:
            time.sleep(LOOK_SECONDS)

    def _refuse(self, started: Callable[[list[str]], None]) -> None:
        """Answer HELLO with where the primary is, until this node serves."""
        endpoints: list[str] = []

        def bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
            # The listener of the role before may be closed only now.
            ends = time.monotonic() + HANDING_OVER_SECONDS
            while True:
                try:
                    socket.bind(endpoint)
                except zmq.ZMQError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(LOOK_SECONDS)
                else:
                    endpoints.append(endpoint)
                    return

        door = StandbyDoor(self._config, bind)
        supervisor = Supervisor.of(os.environ)
        try:
            supervisor.ready()
            started(endpoints)
            while not self._is_stopping:
                role = self.node.role()
                if role.timeline:
                    return
                refusal = NotPrimary(f"{self._config.pair.name} is not the primary: {role.reason}")
                refusal.details = role.details
                door.answer(refusal, REFUSING_SECONDS)
                supervisor.iterated()
        finally:
            door.close()
            supervisor.close()
