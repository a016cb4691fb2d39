"""`malamute work`: answer the requests to a service by running a command for each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from malamute.cli import completion
from malamute.cli.options import Connection, connects, examples, json_option
from malamute.cli.signals import until_stopped
from malamute.errors import TimedOut

if TYPE_CHECKING:
    from malamute.client.message import Request
    from malamute.client.sync_consumers import Work

COMMAND = "malamute.command"
"""The key of `click.Context.meta` for the words after `--`."""

EXIT_HEADER = "malamute.exit"
"""The header of a reply that tells the exit code of a command that failed."""

ERROR_CHARACTERS = 1000
"""How much of a command's standard error a reply tells, from its end."""

STOP_SECONDS = 0.2
"""How often it is looked whether to stop."""


class _WithCommand(click.Command):
    """A command that ends with `-- COMMAND...`, which is not for click to read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[COMMAND] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


@click.command(
    cls=_WithCommand,
    options_metavar="[OPTIONS] -- COMMAND...",
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
@connects
@json_option
def work(
    service: str, patterns: tuple[str, ...], *, workers: int, connection: Connection, as_json: bool
) -> None:
    """Answer the requests to SERVICE whose subject meets any PATTERN by running COMMAND for each.

    The body of the request is its standard input, and what it writes to standard output is the reply. One
    word is given to the shell, several are run as they are. Its environment has MALAMUTE_SERVICE,
    MALAMUTE_SUBJECT, MALAMUTE_SENDER, MALAMUTE_ATTEMPTS, and the headers as MALAMUTE_HEADER_NAME.

    When it fails, the reply has the headers malamute.exit, its exit code, and malamute.error with the end of
    its standard error. A request whose command is interrupted goes to another worker.
    """
    command: Sequence[str] = click.get_current_context().meta.get(COMMAND, ())
    if not command:
        raise click.UsageError("which command? give it after --")
    connection, service = connection.to(service, "service")
    crew = [Worker(connection, service, patterns, command) for _ in range(workers)]
    with until_stopped():
        _run(crew)


def _run(crew: Sequence[Worker]) -> None:
    with ThreadPoolExecutor(len(crew)) as pool:
        runs = [pool.submit(worker.run) for worker in crew]
        try:
            # Not by a lock: a signal that another thread is given does not wake one that waits for a lock.
            while not any(run.done() for run in runs):
                time.sleep(STOP_SECONDS)
        finally:
            for worker in crew:
                worker.stop()
        for run in runs:
            run.result()


class Worker:
    """One connection that answers one request after the other, in a thread of its own."""

    def __init__(
        self, connection: Connection, service: str, patterns: Sequence[str], command: Sequence[str]
    ) -> None:
        self.connection = connection
        self.service = service
        self.patterns = patterns
        self.command = command[0] if len(command) == 1 else command
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Answer requests until `stop`."""
        with self.connection.open() as client, client.work(self.service, *self.patterns) as requests:
            while not self._stopping:
                with suppress(TimedOut):
                    self._answer(requests)

    def stop(self) -> None:
        """End `run` soon, from another thread. A command that runs is ended, and its request not answered."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)

    def _answer(self, requests: Work) -> None:
        request = requests.receive(timeout=STOP_SECONDS)
        try:
            code, output, errors = self._execute(request)
        except (OSError, ValueError) as error:
            code, output, errors = -1, b"", f"{type(error).__name__}: {error}".encode()
        if not self._stopping:
            request.reply(output, _failure(code, errors))

    def _execute(self, request: Request) -> tuple[int, bytes, bytes]:
        with self._lock:
            if self._stopping:
                return 0, b"", b""
            # Away from our terminal's signals: when we are interrupted, we end it ourselves.
            self._process = process = subprocess.Popen(
                self.command,
                shell=isinstance(self.command, str),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(self.service, request, os.environ),
                start_new_session=True,
            )
        with process:
            output, errors = process.communicate(request.body)
        with self._lock:
            self._process = None
        return process.returncode, output, errors


def environment(service: str, request: Request, base: Mapping[str, str]) -> dict[str, str]:
    """What a command finds in its environment."""
    fields = {
        "SERVICE": service,
        "SUBJECT": request.subject,
        "SENDER": request.sender,
        "ATTEMPTS": str(request.attempts),
    }
    for name, value in request.headers.items():
        # Never two underscores in a row: that would be an option of a broker.
        plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        fields[f"HEADER_{plain}"] = value if isinstance(value, str) else _text_of(value)
    # No environment can hold a NUL.
    return {**base, **{f"MALAMUTE_{name}": value.replace("\0", "") for name, value in fields.items()}}


def _text_of(value: float | bool | None) -> str:
    """A value of a header as text: numbers as in Python, true, false, and nothing for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _failure(code: int, errors: bytes) -> dict[str, str | int]:
    from malamute.client.handling import ERROR_HEADER

    if code == 0:
        return {}
    words = errors.decode("utf-8", "backslashreplace").strip()[-ERROR_CHARACTERS:]
    return {EXIT_HEADER: code, ERROR_HEADER: words or f"exit code {code}"}
