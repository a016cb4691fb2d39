"""Options that many commands have: where to connect, and JSON."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from malamute.cli.error_output import JSON, WIDE, print_error, report, report_json
from malamute.cli.escaping import printable
from malamute.cli.units import DurationRange
from malamute.client.contexts import Context, InvalidContext, file_of, load
from malamute.errors import ConnectTimeout, InvalidName, MalamuteError
from malamute.protocol.names import SCHEME, Kind, Place, Uri
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.client.events import Event
    from malamute.client.sync.client import Client

URL = "tcp://127.0.0.1:9999"
TIMEOUT_SECONDS = 5.0

FAMILIES = ("topic", "topic-amqp", "exact", "prefix", "regex", "fields", "geo", "sender", "all")
"""Families of the broker without plug-ins, listed here since help must not import the matching engine."""

JSON_FAMILIES = ("fields", "geo")
"""Families whose patterns are more than text."""


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class ConnectionOptions:
    """Address, user and timeout of a connection to the broker."""

    url: str = URL
    address: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS
    as_json: bool = False
    context: str = ""
    """The name of its context, if any."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials, as arguments of `malamute.connect`; the environment may have them too."""

    def to(self, name: str, kind: Kind) -> tuple[ConnectionOptions, str]:
        """Return the options to reach a stream, mailbox or service, and its name. `name` may be a URI.

        Raises `InvalidName` for an invalid name, or a URI of another kind.
        """
        if not name.lower().startswith(SCHEME):
            return self, name
        uri = Uri.parse(name)
        if uri.kind != kind:
            raise InvalidName(f"URI of a {uri.kind} {name!r}: expected that of a {kind}")
        # Another broker must not learn the password for this one.
        credentials = self.credentials if uri.endpoint == self.url else {}
        return replace(self, url=uri.endpoint, credentials=credentials), uri.name

    def to_place(self, text: str) -> tuple[ConnectionOptions, str]:
        """Return the options to reach a source or target, and `KIND/NAME`; `text` may be a `malamute://` URI.

        Raises `InvalidName` for any other text.
        """
        if not text.lower().startswith(SCHEME):
            return self, str(Place.parse(text))
        uri = Uri.parse(text)
        return self.to(text, uri.kind)[0], str(Place(uri.kind, uri.name))

    @contextmanager
    def open(self) -> Iterator[Client]:
        """Open a client. Its events are printed on standard error.

        A refusal of an unconfirmed command is raised at the end.
        """
        reporter = Reporter(as_json=self.as_json)
        with self._connect() as client:
            client.on_event = reporter
            yield client
        if reporter.refused is not None:
            raise reporter.refused

    def _connect(self) -> Client:
        import logging

        from malamute.client.link.greeting import trouble_with
        from malamute.client.session.route import urls_of
        from malamute.client.sync.client import connect

        # The error that follows says more than a warning about its first sign.
        logging.getLogger("malamute").addHandler(logging.NullHandler())
        try:
            return connect(
                self.url,
                address=self.address,
                timeout=self.timeout_seconds,
                software=f"malamute-cli/{__version__}",
                **self.credentials,  # type: ignore[arg-type]  # these options are text, and the others above
            )
        except ConnectTimeout as error:
            found = "; ".join(dict.fromkeys(filter(None, map(trouble_with, urls_of(self.url)))))
            if not found:
                raise
            place, seconds = ", ".join(urls_of(self.url)), self.timeout_seconds
            raise ConnectTimeout(f"no broker answered at {place} within {seconds} s: {found}") from error


class Reporter:
    """Prints events on standard error. `refused` is the first refusal, which is not printed here."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.refused: MalamuteError | None = None

    def __call__(self, event: Event) -> None:
        """Handle an event of the client."""
        from malamute.client.events import Refusal, Switched

        if isinstance(event, Refusal):
            if self.refused is not None:
                print_error(event.error, as_json=self.as_json)
            self.refused = self.refused or event.error
        elif not isinstance(event, Switched):
            kind, fields = type(event).__name__.lower(), event._asdict()
            if not fields.get("store", True):
                # Only a gap before a change of the store names one.
                del fields["store"]
            if self.as_json:
                report_json({kind: fields})
            else:
                report(_words(kind, fields))


def _words(kind: str, fields: dict[str, Any]) -> str:
    return f"{kind}: " + ", ".join(f"{name} {printable(str(value))}" for name, value in fields.items())


def examples(*commands: str) -> str:
    """Return the epilog of a command's help, with examples."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def selects(function: Function) -> Function:
    """Add PATTERN..., --family and --where, which select messages of a stream.

    The command gets `criteria`, pairs of a family and a pattern, and `where`.
    """

    @click.option("--where", default="", metavar="EXPRESSION", help="A match expression on the headers.")
    @click.option(
        "--family",
        default="topic",
        show_default=True,
        metavar="NAME",
        help=f"How patterns are read: {', '.join(FAMILIES)}, or one of a plug-in of the broker.",
    )
    @click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
    @functools.wraps(function)
    def command(*args: Any, family: str, patterns: tuple[str, ...], **more: Any) -> Any:
        return function(*args, criteria=criteria_of(family, patterns), **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


def criteria_of(family: str, patterns: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the criteria of patterns of one family; one for all messages without patterns.

    In a family with other patterns than text, a pattern in brackets is JSON. Raises `click.BadParameter`.
    """
    return [(family, _pattern_of(family, pattern)) for pattern in patterns] or [("all", "")]


def _pattern_of(family: str, pattern: str) -> Any:
    if family not in JSON_FAMILIES or not pattern.lstrip().startswith(("[", "{")):
        return pattern
    try:
        return json.loads(pattern)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"invalid pattern of family {family}: expected JSON: {error}") from None


def waits(words: str) -> Callable[[Function], Function]:
    """Add --wait, the time to wait for messages of others; `words` describe its end.

    The command gets `wait_seconds`, or None without the option. The decorator stands above `connects`, whose
    --timeout is the default of --wait.
    """

    def decorate(function: Function) -> Function:
        @click.option(
            "--wait",
            "wait_seconds",
            type=DurationRange(min=0),
            metavar="DURATION",
            show_default="--timeout, if that is given",
            help=words,
        )
        @functools.wraps(function)
        def command(*args: Any, wait_seconds: float | None, **more: Any) -> Any:
            ctx = click.get_current_context()
            if wait_seconds is None and ctx.get_parameter_source("timeout") is ParameterSource.COMMANDLINE:
                wait_seconds = ctx.params["timeout"]
            return function(*args, wait_seconds=wait_seconds, **more)

        return command  # type: ignore[return-value]  # the wrapper replaces the command

    return decorate


def complete_context(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the contexts with this beginning."""
    try:
        known = load(file_of(os.environ)).by_name
    except InvalidContext:
        return []
    return [CompletionItem(name, help=c.url) for name, c in known.items() if name.startswith(incomplete)]


context_option = click.option(
    "--context",
    envvar="MALAMUTE_CONTEXT",
    metavar="NAME",
    shell_complete=complete_context,
    help="The broker, by the name that `malamute context add` gave it.",
)
"""--context; `connection_of` uses it."""


def timeout_option(words: str) -> Callable[[Function], Function]:
    """Return --timeout with this help."""
    return click.option(
        "--timeout",
        type=DurationRange(min=0, min_open=True),
        show_default=str(TIMEOUT_SECONDS),
        metavar="DURATION",
        help=words,
    )


def connects(function: Function) -> Function:
    """Add --url, --context, --address, --act-as and --timeout; the command gets them as `connection`."""

    @click.option("--url", "-u", envvar="MALAMUTE_URL", help="The broker.", show_default=URL)
    @context_option
    @click.option("--address", metavar="NAME", help="Connect as the owner of this mailbox.")
    @click.option("--act-as", metavar="USER", help="Have the rights of this user, if a rule allows that.")
    @timeout_option("How long to wait for the broker, and for anything else that has no --wait.")
    @functools.wraps(function)
    def command(
        *args: Any, url: str, context: str, address: str, act_as: str, timeout: float, **more: Any
    ) -> Any:
        return function(*args, connection=connection_of(click.get_current_context()), **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


def connection_of(ctx: click.Context) -> ConnectionOptions:
    """Return the connection given by the options, the environment and the contexts of the user.

    Raises `InvalidContext` for an unknown context, or an invalid file of contexts.
    """
    name, context = _context_of(ctx)
    given = ("url", "address", "timeout", "act_as")
    url, address, timeout, act_as = (ctx.params.get(option) for option in given)
    if ctx.get_parameter_source("url") is not ParameterSource.COMMANDLINE:
        url = context.url or url
    return ConnectionOptions(
        url or context.url or URL,
        context.address or "" if address is None else address,
        timeout or context.timeout or TIMEOUT_SECONDS,
        ctx.meta.get(JSON, False),
        name,
        {**context.credentials(), **({"act_as": act_as} if act_as else {})},
    )


def ask_password(what: str = "Password", *, twice: bool = False) -> str:
    """Return a secret from the terminal, without echo; without a terminal, a line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, confirmation_prompt=twice))
    return sys.stdin.readline().rstrip("\n")


def _context_of(ctx: click.Context) -> tuple[str, Context]:
    """Return the context in use, with its name; an empty one if a URL has precedence."""
    name: str | None = ctx.params.get("context")
    named = ctx.get_parameter_source("context") is ParameterSource.COMMANDLINE
    if ctx.params.get("url") and not named:
        return "", Context()
    contexts = load(file_of(os.environ))
    name = name or contexts.current
    return (name, contexts.get(name)) if name else ("", Context())


def _note_output(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ctx.meta[JSON], ctx.meta[WIDE] = value == "json", value == "wide"


def _note_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON] = value or ctx.meta[JSON]
    return bool(ctx.meta[JSON])


_json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Print JSON, for errors as well."
)
_output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["json", "wide"]),
    callback=_note_output,
    expose_value=False,
    is_eager=True,
    help="json, as --json; or wide: all columns of a table, whatever the terminal holds.",
)


def json_option(function: Function) -> Function:
    """Add --json and --output; the command gets `as_json`."""
    return _output_option(_json_option(function))


def asks(function: Function) -> Function:
    """Add the options of a connection and --json; the command gets `connection` and `as_json`."""
    return connects(json_option(function))
