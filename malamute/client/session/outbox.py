"""The outbox of a session: commands in flight, retried over reconnects until they are answered.

A command that asks for a confirmation gets the next number of the session, and is kept with its frames until
the broker has answered that number: stored, or refused. After every (re)connection all unsettled commands are
sent again, in order and with their old numbers; the broker deduplicates them. So a confirmed command is never
lost and never stored twice, in spite of any broken connection. HELLO names the settled numbers between them:
a broker that was killed may have forgotten one that it had refused.

The window bounds the kept commands, in number and in bytes. Commands without a number are kept only while
there is no connection, *parked*, under the same bound of bytes. Other commands, such as credit, are not kept:
the session sends them anew. While there is a connection, `flow` bounds the bytes in flight, of both kinds.

A confirmation names ranges of numbers and the first sequence of each range; the sequence of every message in
it follows by counting.

A single message that is published while the one before it still waits to be sent is coalesced with it: both
go as one command, with one number. The broker accepts or refuses a command as a whole, so only messages are
coalesced that it would treat alike: of one session, to one stream, at one moment, and small together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from malamute.client.session.flow import COMMAND_BYTES, PathFlow
from malamute.errors import MalamuteError
from malamute.protocol.batch import Frame
from malamute.protocol.codec import encode, encode_records
from malamute.protocol.fields import Ranges
from malamute.protocol.limits import SETTLED_MAX
from malamute.protocol.messages import BY_TYPE, Message, Publish

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of unsettled commands that a session keeps; one command may be larger when it is alone."""

WINDOW_COMMANDS = 16_384
"""Unsettled commands that a session keeps, or fewer if the broker's limit is lower."""

COALESCED_BYTES = 64 * 1024
"""Bytes of the records that are coalesced into one command, or fewer if the broker's limit is lower."""

COALESCED_MESSAGES = 1000
"""Messages that are coalesced into one command."""


class Command:
    """One command until its answer. `count` is its stream messages: 0 for mailboxes and services.

    `completes` is the request that a final reply completes: the source of the offer and the sequence. For a
    command that is not `awaited` a refusal is an event.
    """

    __slots__ = (
        "awaited",
        "completes",
        "count",
        "done",
        "error",
        "frames",
        "number",
        "sequence",
        "size_bytes",
    )

    def __init__(self, count: int = 0, *, awaited: bool = True) -> None:
        self.count = count
        self.awaited = awaited
        self.completes: tuple[int, int] | None = None
        self.number = 0
        self.frames: Sequence[Frame] = ()
        self.size_bytes = 0
        self.done = False
        self.sequence = 0
        self.error: MalamuteError | None = None

    def settle(self, sequence: int = 0, error: MalamuteError | None = None) -> None:
        """Note the answer; the frames are needed no more."""
        self.done = True
        self.sequence = sequence
        self.error = error
        self.frames = ()

    def seal(self) -> Sequence[Frame]:
        """Return the frames to send. From now on they do not change."""
        return self.frames


class StoredSequence(int):
    """The sequence of a message that was published with an id; 0 if it is not known.

    The message is a `duplicate` if it had been stored before.
    """

    duplicate = False

    @classmethod
    def of(cls, answer: int) -> StoredSequence:
        """Return the sequence in an answer, which is negative for a duplicate."""
        stored = cls(abs(answer))
        stored.duplicate = answer < 0
        return stored


class Publication(Command):
    """Single messages to one stream that go as one command, which grows until it is sealed.

    Each confirmed message has a command of its own, which is settled with this one.
    """

    __slots__ = ("parts", "records", "stream", "subjects", "ttl")

    def __init__(self, stream: str, ttl: int) -> None:
        Command.__init__(self)
        self.stream = stream
        self.ttl = ttl
        self.subjects: list[str] = []
        self.records: list[Frame] = []
        self.parts: list[Command] = []

    def seal(self) -> Sequence[Frame]:
        """Return the frames to send. From now on no message is added."""
        if self.records:
            fields = (self.stream, self.number, self.subjects, self.records, self.ttl)
            self.frames = encode_records(BY_TYPE[Publish], fields)
            self.subjects, self.records = [], []
        return self.frames

    def settle(self, sequence: int = 0, error: MalamuteError | None = None) -> None:
        """Settle each of the messages: their sequences are consecutive."""
        Command.settle(self, sequence, error)
        for place, part in enumerate(self.parts):
            part.settle(sequence and sequence + place, error)


class Outbox:
    """The commands of a session: unsent ones, and those that wait for their answers."""

    def __init__(self, window_commands: int = WINDOW_COMMANDS, window_bytes: int = WINDOW_BYTES) -> None:
        self.window_commands = window_commands
        self.window_bytes = window_bytes
        self.coalesced_bytes = COALESCED_BYTES
        self.next_number = 1
        self.ready = False
        """Whether the session is open, so that commands are sent."""
        self.refusal: MalamuteError | None = None
        """The reason why no command is accepted; None while they are."""
        self.flow = PathFlow(window_bytes)
        """The bytes in flight on the present connection."""
        self.lost = 0
        """Messages without an answer when the session ended."""
        self._lowest = 1
        self._commands: dict[int, Command] = {}
        self._bytes = 0
        self.queue: deque[tuple[Sequence[Frame], Command | None]] = deque()
        """Unsent commands; `next_to_send` has the frames of a publication that still grows."""
        self._offered = False
        """Whether the socket was offered the next frames."""
        self._open: Publication | None = None
        """The last publication, while it grows."""
        self._parked: deque[Command] = deque()
        self._parked_bytes = 0

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def messages(self) -> int:
        """Return the number of messages that may not have left: those of unsettled and of unsent commands."""
        queued = (command for _, command in self.queue if command is not None and not command.number)
        return sum(max(1, command.count) for command in chain(self.kept(), queued))

    @property
    def unsettled(self) -> int:
        """Return the lowest number without an answer, or else the next new number."""
        return self._lowest

    def settled(self) -> Ranges:
        """Return the answered numbers above the lowest unanswered one: the first ranges of them."""
        ranges: list[list[int]] = []
        following = self._lowest
        for number in chain(self._commands, (self.next_number,)):
            if number > following:
                ranges.append([following, number - 1])
            following = number + 1
        return ranges[:SETTLED_MAX]

    # Calls of the edge

    @property
    def flows(self) -> bool:
        """Return whether a connection has taken all offered frames, and may be given more."""
        return self.ready and not self._offered and not self.flow.full

    @property
    def may_wait(self) -> bool:
        """Return whether the only unsent command is a publication that still grows."""
        return len(self.queue) == 1 and self.queue[0][1] is self._open

    @property
    def blocked(self) -> bool:
        """Return whether frames wait for a connection that takes no more."""
        return self.ready and self._offered

    def next_to_send(self) -> Sequence[Frame] | None:
        """Return the frames to send next, or None; the same frames until `sent`."""
        if not self.queue:
            return None
        self._offered = True
        frames, command = self.queue[0]
        if not frames:
            assert command is not None, "only a publication has no frames"
            frames = command.seal()
            self.queue[0] = frames, command
            if command is self._open:
                self._open = None
        return frames

    def sent(self) -> None:
        """Note that the socket took the next frames."""
        self._offered = False
        self.queue.popleft()

    # Commands

    def check(self) -> None:
        """Raise the error that ended the session, if any."""
        if self.refusal is not None:
            raise self.refusal

    def room(self, *, numbered: bool) -> bool:
        """Return whether there is room for one more command: in flight, in the window, or parked."""
        if self.ready and (self._offered or self.flow.sent >= self.flow.full_at):
            return False
        if not numbered:
            return self._parked_bytes < self.window_bytes
        return self.next_number - self._lowest < self.window_commands and self._bytes < self.window_bytes

    def submit(
        self,
        command: Command,
        frames: Sequence[Frame],
        size_bytes: int,
        *,
        numbered: bool,
        first: Sequence[Frame] | None = None,
    ) -> None:
        """Add a command; a numbered one is kept under `next_number`, which `frames` carry already.

        `first` are the frames of the first attempt, if it carries a part that must not be repeated.
        """
        if self.refusal is not None:
            raise self.refusal
        self._open = None
        command.frames = frames
        command.size_bytes = size_bytes
        if numbered:
            command.number = self.next_number
            self._commands[command.number] = command
            self._bytes += size_bytes
            self.next_number += 1
        if self.ready:
            self.flow.sent += size_bytes + COMMAND_BYTES
            self.queue.append((first or frames, command))
        elif not numbered:
            self._park(command)

    def publish(
        self, stream: str, subject: str, record: Frame, command: Command | None, ttl: int = 0
    ) -> None:
        """Add a message, confirmed with `command`. The last publication takes it, if that still grows.

        `ttl` is the time to live in milliseconds; 0 is for ever.
        """
        publication, size_bytes = self._open, len(record)
        if (
            publication is None
            or publication.stream != stream
            or publication.ttl != ttl
            or bool(publication.number) != (command is not None)
            or publication.size_bytes + size_bytes > self.coalesced_bytes
            or publication.count >= COALESCED_MESSAGES
            or publication.done
            or self.refusal is not None
        ):
            publication = Publication(stream, ttl)
            self.submit(publication, (), 0, numbered=command is not None)
            self._open = publication
        publication.subjects.append(subject)
        publication.records.append(record)
        publication.size_bytes += size_bytes
        publication.count += 1
        if command is not None:
            command.number = publication.number
            publication.parts.append(command)
            self._bytes += size_bytes
        elif not self.ready:
            self._parked_bytes += size_bytes
        if self.ready:
            self.flow.sent += size_bytes

    def say(self, message: Message) -> None:
        """Send a command that is not kept: while the session is not open it is dropped."""
        if self.ready:
            self._open = None
            self.queue.append((encode(message), None))

    def _park(self, command: Command) -> None:
        self._parked.append(command)
        self._parked_bytes += command.size_bytes

    # Reconnects

    def drop(self) -> None:
        """Handle a lost connection: forget its unkept commands, and park those without a number."""
        self.ready = self._offered = False
        self.flow = PathFlow(self.window_bytes)
        for _, command in self.queue:
            if command is not None and not command.number:
                self._park(command)
        self.queue.clear()

    def begin(self, hello: Message) -> None:
        """Send HELLO, the one command that is sent before the session is open."""
        self.queue.append((encode(hello), None))

    def send_again(self) -> None:
        """Send all unsettled and parked commands: the session is open."""
        self._open = None
        for command in self.kept():
            self.flow.sent += command.size_bytes + COMMAND_BYTES
            self.queue.append((command.frames, command))
        self._parked.clear()
        self._parked_bytes = 0

    def kept(self) -> Iterator[Command]:
        """Yield all unsettled commands in order, and then the parked ones."""
        yield from self._commands.values()
        yield from self._parked

    # Answers

    def stored(self, ranges: Ranges) -> bool:
        """Settle the numbers of a STORED. Return whether it named any open one."""
        commands, before = self._commands, len(self._commands)
        for first, last, sequence in ranges:
            for number in range(max(first, self._lowest), min(last, self.next_number - 1) + 1):
                if number in commands:
                    command = commands[number]
                    self._settle(command, sequence if command.count else 0)
                    sequence += command.count if sequence else 0
        return len(commands) < before

    def answered(self, number: int) -> bool:
        """Settle a number with an answer of its own. Return whether it was open."""
        command = self._commands.get(number)
        if command is not None:
            self._settle(command, 0)
        return command is not None

    def refused(self, number: int, error: MalamuteError) -> Command | None:
        """Settle one number with an error. Return its command, if it was open."""
        command = self._commands.get(number)
        if command is not None:
            self._settle(command, 0, error)
        return command

    def fail(self, error: MalamuteError) -> None:
        """End the session with an error: no command will be answered any more."""
        self.lost = self.messages
        self.ready = self._offered = False
        self.refusal = error
        self.queue.clear()
        self._parked.clear()
        for command in [*self._commands.values()]:
            self._settle(command, 0, error)

    def _settle(self, command: Command, sequence: int, error: MalamuteError | None = None) -> None:
        del self._commands[command.number]
        self._bytes -= command.size_bytes
        command.settle(sequence, error)
        while self._lowest < self.next_number and self._lowest not in self._commands:
            self._lowest += 1
