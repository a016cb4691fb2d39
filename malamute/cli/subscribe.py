"""`malamute sub`: print the messages of a stream as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from malamute.cli import completion
from malamute.cli.exit_codes import TIMED_OUT
from malamute.cli.options import ConnectionOptions, connects, examples, selects, waits
from malamute.cli.pacing import Pacer
from malamute.cli.printing import Render, as_line, prints_messages, show
from malamute.cli.signals import until_stopped

if TYPE_CHECKING:
    from malamute.client.options import Criteria
    from malamute.client.sync.consumers import Subscription

CHUNK = 1000
"""Maximum messages printed at once."""


@click.command(
    epilog=examples(
        "malamute sub weather 'temp.*' 'wind.#'",
        "malamute sub weather --start first --json | jq .body",
        "malamute sub ships --family geo '{\"circle\": [59.91, 10.75, 50]}'",
    )
)
@click.argument("stream", shell_complete=completion.names("streams"))
@selects
@click.option(
    "--start",
    default="new",
    show_default=True,
    metavar="START",
    help="new, first, last, last-per-subject, seq:N, time:2026-01-31T12:00, or since:1h.",
)
@click.option(
    "--cursor",
    default="",
    metavar="NAME",
    help="Continue at the cursor NAME, and move it behind printed messages.",
)
@click.option("--committed", is_flag=True, help="Only durable messages, which no crash can revoke.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FACTOR",
    help="Replay at the pace of publishing: 1 as it was, 2 twice as fast.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many messages.")
@waits("End when no message comes for so long; with --count, and fewer messages, that is exit code 3.")
@connects
@prints_messages(as_line)
def sub(
    stream: str,
    *,
    criteria: Criteria,
    where: str,
    start: str,
    cursor: str,
    committed: bool,
    speed: float | None,
    count: int | None,
    wait_seconds: float | None,
    connection: ConnectionOptions,
    render: Render,
) -> None:
    """Subscribe to STREAM, and print each message whose subject matches any PATTERN; all by default.

    A line has the sequence, the subject, the body and the headers, with tabs between them. The command ends
    with SIGINT, SIGTERM, or when its output is closed. Gaps and events of the connection are printed on
    standard error.
    """
    connection, stream = connection.to(stream, "stream")
    with until_stopped(), connection.open() as client:
        with client.subscribe(
            stream,
            criteria=criteria,
            where=where,
            start=start,
            cursor=cursor,
            committed=committed,
            credit=window(count),
        ) as messages:
            pace = Pacer(speed) if speed else None
            left = follow(
                messages, render, count=count, wait_seconds=wait_seconds, pace=pace, commit=bool(cursor)
            )
        if left:
            raise click.exceptions.Exit(TIMED_OUT)


def window(count: int | None) -> int:
    """Return the credit for `count` messages: no more than wanted."""
    from malamute.client.options import CREDIT_MESSAGES

    return CREDIT_MESSAGES if count is None else min(count, CREDIT_MESSAGES)


def follow(
    messages: Subscription,
    render: Render,
    *,
    count: int | None,
    wait_seconds: float | None,
    pace: Pacer | None = None,
    commit: bool = False,
) -> int:
    """Print messages as they arrive; with `commit`, commit each printed chunk.

    The end is after `count` messages, or `wait_seconds` without one. Returns the number of missing messages.
    """
    left = count
    while left is None or left > 0:
        chunk = messages.take(CHUNK if left is None else min(left, CHUNK), timeout=wait_seconds)
        if not chunk:
            break
        for part in ([message] for message in pace.paced(chunk)) if pace else (chunk,):
            show(part, render)
        if commit:
            messages.commit(chunk[-1])
        left = None if left is None else left - len(chunk)
    return left or 0
