"""Options of a message for a queue: expiry, delay, and priority."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from malamute.cli.error_output import report, report_json
from malamute.cli.printing import printable
from malamute.cli.units import duration, moment

if TYPE_CHECKING:
    from malamute.client.session.receipts import SentBase

Function = TypeVar("Function", bound=Callable[..., Any])


ACKNOWLEDGED = "acknowledged"
"""The successful outcome."""

OPTIONS = {
    "ttl": click.option(
        "--ttl",
        type=duration,
        metavar="DURATION",
        help="Time until it expires undelivered, as 30s.",
    ),
    "priority": click.option(
        "--priority", type=click.IntRange(0, 9), help="Higher is delivered first; 0 unless given."
    ),
    "delay": click.option(
        "--delay", type=duration, metavar="DURATION", help="Deliver it after this time, as 10m."
    ),
    "at": click.option(
        "--at", type=moment, metavar="TIME", help="Deliver it at this time, in UTC, or later."
    ),
    "id": click.option(
        "--id", metavar="ID", help="Store it once: another message with this id is confirmed and dropped."
    ),
    "key": click.option(
        "--key", metavar="KEY", help="Requests with the same key go to the same worker, while it is there."
    ),
    "immediate": click.option(
        "--immediate", is_flag=True, default=None, help="Refuse it unless a consumer can take it now."
    ),
    "reply_to": click.option("--reply-to", metavar="ADDRESS", help="The mailbox that is to get the replies."),
}
"""Options of the SDK, each as one of the command line."""


def print_outcome(sent: SentBase, *, as_json: bool) -> None:
    """Print the outcome of a message on standard error."""
    if as_json:
        shown = {"outcome": sent.outcome, "reason": sent.reason or None}
        report_json(shown)
    else:
        report(f"{sent.outcome}{f': {printable(sent.reason)}' if sent.reason else ''}")


def message_options(*names: str) -> Callable[[Function], Function]:
    """Add these options; the command gets those given as the map `options`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, **more: Any) -> Any:
            given = {name: more.pop(name) for name in names}
            options = {name: value for name, value in given.items() if value is not None}
            if "delay" in options and "at" in options:
                raise click.UsageError("--delay and --at together: expected one of them")
            return function(*args, options=options, **more)

        decorated: Any = command
        for name in reversed(names):
            decorated = OPTIONS[name](decorated)
        return decorated  # type: ignore[no-any-return]  # the wrapper replaces the command

    return decorate
