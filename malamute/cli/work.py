"""`malamute work`: answer the requests to a service by running a command for each."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from malamute.cli import completion, units
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.signals import until_stopped
from malamute.errors import TooLarge

if TYPE_CHECKING:
    from malamute.client.sync.consumers import Request

COMMAND = "malamute.command"
"""The key of `click.Context.meta` for the words after `--`."""

EXIT_HEADER = "malamute.exit"
"""The header of a reply with the exit code of a command that failed."""

ERROR_CHARACTERS = 1000
"""Characters of a command's standard error in a reply, from its end."""

PIECE_BYTES = 65_536
"""Bytes read or written at a time."""


class _WithCommand(click.Command):
    """A command that ends with `-- COMMAND...`, which click must not parse."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[COMMAND] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@click.command(
    cls=_WithCommand,
    epilog=examples(
        "malamute work shout 'text.*' -- tr a-z A-Z", "malamute work count --workers 4 -- 'sort | uniq -c'"
    ),
)
@click.argument("service", shell_complete=completion.names("services"))
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="How many commands may run at the same time.",
)
@click.option(
    "--output-limit",
    default="16MiB",
    show_default=True,
    metavar="SIZE",
    help="How much a command may write to its standard output; one that writes more is ended.",
)
@asks
def work(
    service: str,
    patterns: tuple[str, ...],
    *,
    workers: int,
    output_limit: str,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Answer the requests to SERVICE whose subject matches any PATTERN by running COMMAND for each.

    The body of the request is its standard input, and its standard output is the reply. One word is run by
    the shell, several are run directly. Its environment has MALAMUTE_SERVICE, MALAMUTE_SUBJECT,
    MALAMUTE_SENDER, MALAMUTE_ATTEMPTS, and the headers as MALAMUTE_HEADER_NAME.

    The command may run for as long as it needs: progress is reported to the broker meanwhile. When it fails,
    the reply has the headers malamute.exit, its exit code, and malamute.error with the end of its standard
    error. A request whose command is interrupted goes to another worker.
    """
    command: Sequence[str] = click.get_current_context().meta.get(COMMAND, ())
    if not command:
        raise click.UsageError("no command: give it after --")
    connection, service = connection.to(service, "service")
    commands = Commands(service, command, units.size(output_limit))
    with until_stopped(), connection.open() as client:
        client.service(service, *patterns, concurrency=workers)(commands.answer)
        try:
            client.run()
        finally:
            commands.stop()


class Outcome(NamedTuple):
    """The result of a command: its exit code, its output, and its error."""

    code: int
    output: bytes
    errors: bytes


class Commands:
    """Answers requests, each by a command, in the threads that call it."""

    def __init__(self, service: str, command: Sequence[str], output_bytes_max: int) -> None:
        self.service = service
        self.command = command[0] if len(command) == 1 else command
        self._output_bytes_max = output_bytes_max
        self._stopping = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> None:
        """Answer a request, unless `stop` comes before the command is done."""
        try:
            outcome = self._execute(request)
        except (OSError, ValueError) as error:
            outcome = Outcome(-1, b"", f"{type(error).__name__}: {error}".encode())
        if self._stopping:
            return
        try:
            request.reply(outcome.output, _failure(outcome))
        except TooLarge as error:
            request.reply(b"", _failure(Outcome(outcome.code or -1, b"", error.text.encode())))

    def stop(self) -> None:
        """End the running commands, and answer no more."""
        with self._lock:
            self._stopping = True
            for process in self._processes:
                _end(process)

    def _execute(self, request: Request) -> Outcome:
        with self._lock:
            if self._stopping:
                return Outcome(-1, b"", b"")
            # The command is detached from the terminal's signals: an interrupt of this process ends it here.
            process = subprocess.Popen(
                self.command,
                shell=isinstance(self.command, str),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(self.service, request, os.environ),
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            with process:
                return self._converse(process, request.body)
        finally:
            with self._lock:
                self._processes.discard(process)

    def _converse(self, process: subprocess.Popen[bytes], body: bytes) -> Outcome:
        """Give a command its input, and read its output, up to the limit."""
        conversation = Conversation(process, body, self._output_bytes_max)
        if conversation.run():
            return Outcome(process.wait(), bytes(conversation.output), bytes(conversation.errors))
        _end(process)
        words = f"more than {self._output_bytes_max:,} bytes of output"
        return Outcome(process.wait() or -1, b"", words.encode())


class Conversation:
    """The three pipes of a command. Of its errors, the end is kept."""

    def __init__(self, process: subprocess.Popen[bytes], body: bytes, output_bytes_max: int) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self._left = memoryview(body)
        self._output_bytes_max = output_bytes_max
        self._selector = selectors.DefaultSelector()
        self._register(process.stdin, selectors.EVENT_WRITE, self._write)
        self._register(process.stdout, selectors.EVENT_READ, self._take_output)
        self._register(process.stderr, selectors.EVENT_READ, self._take_errors)

    def _register(self, pipe: IO[bytes] | None, events: int, act: Callable[[int], bool]) -> None:
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, events, act)

    def run(self) -> bool:
        """Run until all three are closed. Return False when the output exceeds the limit."""
        with self._selector:
            while self._selector.get_map():
                for key, _ in self._selector.select():
                    if not key.data(key.fd):
                        self._selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]  # only pipes were registered
                if len(self.output) > self._output_bytes_max:
                    return False
        return True

    # Each returns whether the pipe is still of use.

    def _write(self, pipe: int) -> bool:
        try:
            self._left = self._left[os.write(pipe, self._left[:PIECE_BYTES]) :] if self._left else self._left
        except BrokenPipeError:
            return False  # the command does not read all of its input
        return bool(self._left)

    def _take_output(self, pipe: int) -> bool:
        piece = os.read(pipe, PIECE_BYTES)
        self.output += piece
        return bool(piece)

    def _take_errors(self, pipe: int) -> bool:
        piece = os.read(pipe, PIECE_BYTES)
        self.errors += piece
        # A character takes four bytes at the most.
        del self.errors[: -4 * ERROR_CHARACTERS]
        return bool(piece)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to end, with all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def environment(service: str, request: Request, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command."""
    fields = {
        "SERVICE": service,
        "SUBJECT": request.subject,
        "SENDER": request.sender,
        "ATTEMPTS": str(request.attempts),
    }
    for name, value in request.headers.items():
        # Two underscores in a row would be an option of a broker.
        plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        fields[f"HEADER_{plain}"] = value if isinstance(value, str) else _text_of(value)
    # No environment can hold a NUL.
    return {**base, **{f"MALAMUTE_{name}": value.replace("\0", "") for name, value in fields.items()}}


def _text_of(value: float | bool | None) -> str:
    """Return the value of a header as text: numbers as in Python, true, false, and nothing for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _failure(outcome: Outcome) -> dict[str, str | int]:
    from malamute.protocol.names import ERROR_HEADER

    if outcome.code == 0:
        return {}
    words = outcome.errors.decode("utf-8", "backslashreplace").strip()[-ERROR_CHARACTERS:]
    return {EXIT_HEADER: outcome.code, ERROR_HEADER: words or f"exit code {outcome.code}"}
