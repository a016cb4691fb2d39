"""The command `malamute` with its subcommands, and the handling of their errors."""

from __future__ import annotations

from typing import Any

import click

from malamute.cli.error_output import JSON, fitted_usage_errors, print_error
from malamute.cli.exit_codes import EPILOG, INTERRUPTED, OK, code_of
from malamute.cli.lazy import Lazy, LazyGroup
from malamute.cli.signals import drop_output
from malamute.cli.standard_streams import check_output
from malamute.errors import MalamuteError
from malamute.version import __version__

SECTIONS = {
    "Messages": {
        "pub": Lazy("malamute.cli.publish:pub", "Publish messages to a stream."),
        "sub": Lazy("malamute.cli.subscribe:sub", "Subscribe to a stream, and print its messages."),
        "send": Lazy("malamute.cli.mail:send", "Send a message to a mailbox."),
        "recv": Lazy("malamute.cli.mail:recv", "Receive the messages of a mailbox."),
        "request": Lazy("malamute.cli.request:request", "Ask a service, and print the replies."),
        "work": Lazy("malamute.cli.work:work", "Answer the requests to a service with a command."),
    },
    "Administration": {
        "broker": Lazy("malamute.cli.broker:broker", "Run a broker, and look at it."),
        "gateway": Lazy("malamute.cli.gateway:gateway", "Run an HTTP server before a broker."),
        "mcp": Lazy("malamute.cli.mcp:mcp", "Serve agents by the Model Context Protocol."),
        "stream": Lazy("malamute.cli.streams:stream", "The streams of a broker."),
        "cursor": Lazy("malamute.cli.cursors:cursor", "Named positions in streams."),
        "mailbox": Lazy("malamute.cli.queues:mailbox", "The mailboxes of a broker."),
        "service": Lazy("malamute.cli.queues:service", "The services of a broker."),
        "bucket": Lazy("malamute.cli.buckets:bucket", "Buckets: values by key."),
        "feed": Lazy("malamute.cli.feeds:feed", "Feeds: messages passed from a source to a target."),
        "link": Lazy("malamute.cli.links:link", "Links: streams of other brokers, copied here."),
        "pack": Lazy("malamute.cli.pack:pack", "Carry the links of a broker."),
        "pair": Lazy("malamute.cli.pair:pair", "Two brokers that back each other up."),
        "client": Lazy("malamute.cli.clients:client", "The clients of a broker."),
        "keys": Lazy("malamute.cli.keys:keys", "CURVE keys of brokers and clients."),
        "group": Lazy("malamute.cli.groups:group", "The groups of users, and their rules."),
        "user": Lazy("malamute.cli.users:user", "The accounts of users."),
        "auth": Lazy("malamute.cli.auth:auth", "Permissions, and the rules behind them."),
        "top": Lazy("malamute.cli.top:top", "Watch a broker, live."),
        "events": Lazy("malamute.cli.events:events", "Follow the events of a broker."),
        "journal": Lazy(
            "malamute.cli.journal:journal", "Check, inspect, back up and restore a data directory."
        ),
        "context": Lazy("malamute.cli.context:context", "Names for the brokers that you work with."),
        "spark": Lazy("malamute.cli.spark:spark", "Analyse, match and replay exported history."),
        "config": Lazy("malamute.cli.configuration:config", "Check and show the configuration of a broker."),
    },
    "Finding out": {
        "demo": Lazy("malamute.cli.demo.command:demo", "Move real flights through all three patterns."),
        "bench": Lazy("malamute.cli.bench:bench", "Measure the broker on this machine."),
        "cheat": Lazy("malamute.cli.cheat:cheat", "Show the commands that are typed most."),
        "completion": Lazy("malamute.cli.completion:completion", "Complete commands and names in a shell."),
        "errors": Lazy("malamute.cli.error_table:errors", "Explain the numbers of errors."),
    },
}


class Root(LazyGroup):
    """The group that prints errors the same way for all commands."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Return the context of the command. Raises `click.UsageError` for options before a command."""
        with fitted_usage_errors():
            return super().make_context(*args, **more)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand. Without a standard output most are refused."""
        check_output(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, and turn its errors into words and an exit code."""
        with fitted_usage_errors():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MalamuteError as error:
            print_error(error, as_json=ctx.meta.get(JSON, False))
            ctx.exit(code_of(error))
        except click.NoSuchOption as error:
            raise _explained(error) from None
        except BrokenPipeError:
            drop_output()
            ctx.exit(OK)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def _explained(error: click.NoSuchOption) -> click.UsageError:
    """Return the error, with advice where an argument such as -3.5 may have been meant."""
    ctx = error.ctx
    takes_arguments = ctx is not None and any(isinstance(p, click.Argument) for p in ctx.command.params)
    if ctx is None or error.option_name.startswith("--") or not takes_arguments:
        return error
    words = f"An argument that begins with - stands behind --: {ctx.command_path} ... -- ARGUMENT"
    return click.UsageError(f"{error.format_message()} {words}", ctx)


@click.group(
    cls=Root,
    sections=SECTIONS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="malamute %(version)s")
def cli() -> None:
    """Malamute: streams, mailboxes and services in one message broker.

    `malamute broker run` starts one; `malamute COMMAND --help` explains each command.
    """
