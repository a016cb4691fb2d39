"""`malamute broker check`: the state of a broker, for a monitoring system.

The output follows the convention of monitoring plugins, which Nagios, Icinga and others call: one line of
text, a bar, the figures, and an exit code for the state. The worst finding decides the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.printing import printable, to_json
from malamute.cli.units import duration
from malamute.errors import ConnectTimeout, MalamuteError

if TYPE_CHECKING:
    from malamute.client.sync.client import Client
    from malamute.protocol import admin


class PluginState(IntEnum):
    """The exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class CheckBounds(NamedTuple):
    """Bounds from which a figure is a warning, and critical."""

    warning: float | None = None
    critical: float | None = None


class Figure(NamedTuple):
    """A measured figure, and the resource with the worst value."""

    value: float
    where: str = ""


class CheckedFigure(NamedTuple):
    """A row of the table of figures: unit for programs, reader of its bounds, and words.

    With `least` a figure below the bound is bad, otherwise a figure at or above it.
    """

    unit: str
    read: Callable[[str], float]
    words: str
    least: bool = False


MEASURES: Mapping[str, CheckedFigure] = {
    "lag": CheckedFigure("", float, "messages that a reader or a cursor is behind"),
    "depth": CheckedFigure("", float, "messages in a mailbox or service"),
    "oldest": CheckedFigure("s", duration, "age of the oldest message in a mailbox or service"),
    "dead": CheckedFigure("", float, "dead letters, all together"),
    "full": CheckedFigure("%", float, "how much of the most used limit is used, in percent"),
    "refused": CheckedFigure("", float, "commands refused for want of room in the last minute or two"),
    "fill": CheckedFigure("%", float, "how full the fullest store is, in percent"),
    "reader": CheckedFigure("", float, "transactions that the oldest reader of the data directory is behind"),
    "uptime": CheckedFigure("s", duration, "how long the broker has run", least=True),
    "faults": CheckedFigure("", float, "faults of the broker's own since it started, which are in its log"),
    "unrecovered": CheckedFigure("", float, "things of the store that the broker could not take up"),
    "quotas": CheckedFigure("", float, "commands that a quota has refused since the broker started"),
    "surplus": CheckedFigure(
        "", float, "dead letters exceed a lowered limit: the next dead letter drops them"
    ),
}


USUAL = {
    "full": CheckBounds(90),
    "refused": CheckBounds(1),
    "faults": CheckBounds(1),
    "unrecovered": CheckBounds(1),
    "surplus": CheckBounds(1),
}
"""Default bounds: of figures that should be 0, or that soon lead to refusals."""


class Finding(NamedTuple):
    """A figure compared with its bounds."""

    name: str
    figure: Figure
    bounds: CheckBounds
    state: PluginState

    def performance(self) -> str:
        """Return the figure for programs: label=value, unit, warning, critical."""
        measure = MEASURES[self.name]
        end = ":" if measure.least else ""
        bounds = ("" if bound is None else f"{_plain(bound)}{end}" for bound in self.bounds)
        return f"{self.name}={_plain(self.figure.value)}{measure.unit};{';'.join(bounds)}"

    def words(self) -> str:
        """Return the fault in words for people."""
        measure = MEASURES[self.name]
        bound = self.bounds.critical if self.state is PluginState.CRITICAL else self.bounds.warning
        where = f" ({printable(self.figure.where)})" if self.figure.where else ""
        relation = "below" if measure.least else "at or over"
        return (
            f"{self.name} {_plain(self.figure.value)}{measure.unit}{where} is {relation} {_plain(bound or 0)}"
        )


def _plain(value: float) -> str:
    """Return a number in the only form that the convention knows: digits without an exponent."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def judge(name: str, figure: Figure, bounds: CheckBounds) -> Finding:
    """Compare a figure with its bounds."""
    least = MEASURES[name].least
    for state, bound in ((PluginState.CRITICAL, bounds.critical), (PluginState.WARNING, bounds.warning)):
        if bound is not None and (figure.value < bound if least else figure.value >= bound):
            return Finding(name, figure, bounds, state)
    return Finding(name, figure, bounds, PluginState.OK)


def faults(status: admin.BrokerStatus) -> list[tuple[PluginState, str]]:
    """Return faults of a broker that need no bounds."""
    found = []
    if status.store_error:
        found.append((PluginState.CRITICAL, f"the store takes nothing: {printable(status.store_error)}"))
    if status.config_error:
        words = f"the configuration was refused at a reload: {printable(status.config_error)}"
        found.append((PluginState.WARNING, words))
    if status.waiting_for_restart:
        words = f"options wait for a restart: {printable(', '.join(status.waiting_for_restart))}"
        found.append((PluginState.WARNING, words))
    if status.damages:
        words = f"{status.damages} parts of the store are damaged; `malamute broker backup` lists them"
        found.append((PluginState.WARNING, words))
    return found


def measure(client: Client, status: admin.BrokerStatus) -> dict[str, Figure]:
    """Query a broker for all figures."""
    from malamute.protocol import admin

    storage, totals = client.query(admin.StorageQuery()), client.query(admin.TotalsQuery())
    reader = f"process {storage.reader_pid}" if storage.reader_pid else ""
    queues = [(f"mailbox {row.name}", row) for row in client.query(admin.MailboxesQuery())]
    queues += [(f"service {row.name}", row) for row in client.query(admin.ServicesQuery())]
    dead = [Figure(row.dead_letters, where) for where, row in queues]
    return {
        "lag": _worst(_lags(client)),
        "depth": _worst(Figure(row.messages, where) for where, row in queues),
        "oldest": _worst(Figure(row.oldest_age or 0.0, where) for where, row in queues),
        "dead": Figure(sum(figure.value for figure in dead), _worst(dead).where),
        "full": _worst(
            Figure(100 * one.used / one.limit, " ".join(filter(None, (one.name, one.where))))
            for one in totals.limits
            if one.refuses and one.limit
        ),
        "refused": Figure(totals.refused_lately),
        "fill": Figure(100 * storage.used / storage.size),
        "reader": Figure(storage.reader_lag, reader),
        "uptime": Figure(status.uptime),
        "faults": Figure(status.faults),
        "unrecovered": Figure(status.not_recovered),
        "quotas": Figure(status.quotas_exceeded),
        "surplus": Figure(status.dead_excess),
    }


def _lags(client: Client) -> Iterable[Figure]:
    from malamute.protocol import admin

    for cursor in client.query(admin.CursorsQuery()):
        # A cursor without a lag is lost, which is a damage of the store.
        if cursor.lag is not None:
            yield Figure(cursor.lag, f"{cursor.stream} for {cursor.name}")
    for stream in client.query(admin.StreamsQuery()):
        if stream.selectors:
            for reader in client.query(admin.StreamQuery(name=stream.name)).readers:
                yield Figure(reader.lag, f"{stream.name} for {reader.address or reader.client}")


def _worst(figures: Iterable[Figure]) -> Figure:
    """Return the highest figure; without a resource when it is 0."""
    worst = max(figures, key=lambda figure: figure.value, default=Figure(0))
    return worst if worst.value else Figure(0)


def _read_bounds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> CheckBounds:
    assert parameter.name is not None
    if text is None:
        return USUAL.get(parameter.name, CheckBounds())
    measure = MEASURES[parameter.name]
    try:
        parts = [measure.read(part) if part else None for part in text.split(",")]
        bounds = CheckBounds(*parts)
    except (ValueError, TypeError):
        raise click.BadParameter(
            f"invalid bounds {text!r}: expected WARNING, WARNING,CRITICAL or ,CRITICAL"
        ) from None
    warning, critical = bounds
    if (
        warning is not None
        and critical is not None
        and (warning < critical if measure.least else warning > critical)
    ):
        raise click.BadParameter(f"invalid bounds {text!r}: expected a warning before it is critical")
    return bounds


class _WrongUsage(click.UsageError):
    """Wrong usage: its usual exit code 2 would mean a critical broker here."""

    exit_code = PluginState.UNKNOWN


class _Plugin(click.Command):
    """A command with the exit codes of a monitoring plugin, for wrong usage too."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*args, **more)
        except click.UsageError as error:
            raise _WrongUsage(error.format_message(), error.ctx) from None


def _bounds_options(function: Callable[..., None]) -> Callable[..., None]:
    for name, measure in [*MEASURES.items()][::-1]:
        words = (
            f"{measure.words[0].upper()}{measure.words[1:]}; bad is {'less' if measure.least else 'more'}."
        )
        option = click.option(f"--{name}", metavar="WARN[,CRIT]", callback=_read_bounds, help=words)
        function = option(function)
    return function


EXIT_CODES = """\b
Exit codes:
  0  OK        the broker answers, and no figure exceeds its bounds
  1  WARNING   a figure exceeds its first bound, or the store is damaged
  2  CRITICAL  a figure exceeds its second bound, a store cannot write, or no broker answers
  3  UNKNOWN   the state is unknown, or the options are wrong

"""


@click.command(
    cls=_Plugin,
    epilog=EXIT_CODES
    + examples("malamute broker check --lag 1000,100000 --oldest 10m,1h --dead 1 --fill 80,95 --uptime 5m"),
)
@_bounds_options
@asks
def check(*, connection: ConnectionOptions, as_json: bool, **bounds: CheckBounds) -> None:
    """Check a broker for a monitoring system. The exit code is the state, as of a Nagios plugin.

    The line ends with all figures, with or without bounds. Lag, depth and oldest are the worst of all streams
    and queues. By default a limit that is used to 90 % is a warning, and so is a command just refused for
    lack of room, a single fault, or an unrecovered resource of the store.
    """
    from malamute.protocol import admin

    try:
        with connection.open() as client:
            status = client.query(admin.StatusQuery())
            wrong, figures = faults(status), measure(client, status)
    except MalamuteError as error:
        state = PluginState.CRITICAL if isinstance(error, ConnectTimeout) else PluginState.UNKNOWN
        _print_result(state, str(error), (), as_json=as_json)
        return
    findings = [judge(name, figure, bounds[name]) for name, figure in figures.items()]
    state = max([*(state for state, _ in wrong), *(finding.state for finding in findings)])
    bad = [*(words for _, words in wrong), *(finding.words() for finding in findings if finding.state)]
    _print_result(
        state, ", ".join(bad) or f"the broker at {connection.url} is well", findings, as_json=as_json
    )


def _print_result(state: PluginState, text: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": finding.name,
                "value": finding.figure.value,
                "where": finding.figure.where or None,
                **finding.bounds._asdict(),
                "state": finding.state.name,
            }
            for finding in findings
        ]
        click.echo(to_json({"state": state.name, "text": text, "findings": rows}))
    else:
        figures = " ".join(finding.performance() for finding in findings)
        words = printable(text).replace("|", "/")
        click.echo(f"MALAMUTE {state.name} - {words}{f' | {figures}' if figures else ''}")
    raise click.exceptions.Exit(state)
