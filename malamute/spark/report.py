"""The analysis as one page of HTML: it opens without a network, in light and in dark.

Everything is in the file: the style, the charts as SVG, and no script. The page is made from the tables of
the analysis, of which it shows the largest rows; the tables have all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, NamedTuple

from malamute.protocol.time_units import to_seconds
from malamute.spark.analyze_tables import LATE, Engine, Tables
from malamute.spark.partial_aggregates import EACH_DOUBLING
from malamute.spark.report_charts import COLOURS, STYLE, Tick, bars, columns, lines, short
from malamute.spark.scan import file_system
from malamute.version import __version__

POINTS = 300
"""Points of a line, at most."""

WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)
"""Seconds that a point may stand for, if the windows fit into them."""

ROWS = 200
"""Maximum rows of a shown table."""

RATE = "messages a second; times are UTC"
NEW = "new subjects a second; times are UTC"

Row = Mapping[str, Any]
Section = Callable[["Ask", "Facts"], str]


class Facts(NamedTuple):
    """The facts of a page about itself: source and resolution of the analysis."""

    location: str
    window_seconds: int
    top: int


class Ask(NamedTuple):
    """Queries over the tables of an analysis."""

    engine: Engine
    tables: Tables

    def __call__(self, query: str) -> list[Row]:
        """Return the rows of a query, which has the names of tables in braces."""
        return [*self.engine.rows(self.engine.sql(query, **self.tables))]


def page(engine: Engine, tables: Tables, facts: Facts) -> str:
    """The page."""
    ask = Ask(engine, tables)
    streams = ask("select * from {streams} order by stream")
    sections = [(title, note, body) for title, note, make in SECTIONS if (body := make(ask, facts))]
    measures = [
        (
            f"Measure: {name.removeprefix('measure_')}",
            "",
            _table(ask(f"select * from {{{name}}} limit {ROWS}")),
        )
        for name in tables
        if name.startswith("measure_")
    ]
    made = datetime.now(UTC).isoformat(timespec="seconds")
    about = f"{facts.location} · windows of {facts.window_seconds} s · malamute {__version__} · {made}"
    body = "".join(_section(*parts) for parts in (*sections, *measures))
    links = "".join(f'<a href="#{_anchor(t)}">{escape(t)}</a> ' for t, _, _ in (*sections, *measures))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Malamute: what happened</title><style>{PAGE_STYLE}{STYLE}</style></head><body><main>"
        f"<h1>What happened</h1><p>{escape(about)}</p>{_cards(streams)}<nav>{links}</nav>{body}"
        "</main></body></html>\n"
    )


def save(html: str, target: str) -> None:
    """Write a page as `report.html` to a directory, or to the URL of one."""
    files, path = file_system(target)
    files.create_dir(path, recursive=True)
    with files.open_output_stream(f"{path.rstrip('/')}/report.html") as out:
        out.write(html.encode())


def _section(title: str, note: str, inner: str) -> str:
    explained = f"<p>{escape(note)}</p>" if note else ""
    return f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{explained}{inner}</section>'


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower())


def _cards(streams: Sequence[Row]) -> str:
    def total(name: str) -> float:
        return float(sum(row[name] or 0 for row in streams))

    cards = {
        "streams": str(len(streams)),
        "messages": short(total("messages")),
        "bytes": short(total("bytes")),
        "missing": short(total("missing")),
        "duplicates": short(total("duplicates")),
    }
    items = (f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in cards.items())
    return f'<div class="cards">{"".join(items)}</div>'


# Sections: each makes its part of the page, or nothing where there is nothing to show.


def _listed(query: str) -> Section:
    """Return the maker of a section with the first rows of a query."""
    return lambda ask, facts: _table(ask(f"{query} limit {ROWS}"))


def _over_time(name: str, unit: str, table: str = "volume", what: str = "messages") -> Section:
    """Return the maker of a section with a line for each name."""

    def made(ask: Ask, facts: Facts) -> str:
        summed = _summed(ask, name, facts, table, what)
        return lines(*summed, unit) if summed[0] else ""

    return made


_AT = "cast(floor(unix_micros(`window`) / 1000000) as bigint)"


def _summed(
    ask: Ask, name: str, facts: Facts, table: str, what: str
) -> tuple[dict[str, list[tuple[float, float]]], list[Tick]]:
    """A number a second of each name over the time, in windows as wide as the page can show."""
    [ends] = ask(f"select min({_AT}) as begin, max({_AT}) as until from {{{table}}}")
    if ends["begin"] is None:
        return {}, []
    width = width_of_points(ends["until"] - ends["begin"], facts.window_seconds)
    first = ends["begin"] - ends["begin"] % width
    span = ends["until"] - first + facts.window_seconds
    # The largest names alone: each would be a line.
    rows = ask(
        f"select placed.name as name, place, cast(sum(placed.many) as bigint) as messages from ("
        f"  select {name} as name, cast(floor(({_AT} - {first}) / {width}) as bigint) as place,"
        f"  {what} as many from {{{table}}}) as placed join ("
        f"  select {name} as name, sum({what}) as many from {{{table}}}"
        f"  group by 1 order by 2 desc, 1 limit {COLOURS}) as most on most.name = placed.name group by 1, 2"
    )
    series: dict[str, dict[int, int]] = {}
    for row in rows:
        series.setdefault(row["name"], {})[row["place"]] = row["messages"]
    count = -(-span // width)
    most = sorted(series, key=lambda name: (-sum(series[name].values()), name))
    points = {
        name: [((n + 0.5) / count, series[name].get(n, 0) / width) for n in range(count)] for name in most
    }
    return points, _times(first, span)


def window_of(seconds: float) -> int:
    """The window for history of so many seconds: as many windows as a line has points, or somewhat fewer."""
    return next((width for width in WIDTHS if seconds <= width * POINTS), WIDTHS[-1])


def width_of_points(span_seconds: int, window_seconds: int) -> int:
    """How many seconds a point stands for: whole hours and days, since windows across them look ragged."""
    least = max(window_seconds, -(-span_seconds // POINTS))
    fitting = (width for width in WIDTHS if least <= width <= 7 * least and width % window_seconds == 0)
    return next(fitting, -(-least // window_seconds) * window_seconds)


def _times(first: int, span: int) -> list[Tick]:
    begin = datetime.fromtimestamp(first, UTC)
    form = "%H:%M:%S" if span < 600 else "%d %b %H:%M" if span < 7 * 86_400 else "%d %b %Y"
    quarters = (0, 0.25, 0.5, 0.75, 1)
    return [Tick(share, (begin + timedelta(seconds=span * share)).strftime(form)) for share in quarters]


def _subjects(ask: Ask, facts: Facts) -> str:
    rows = ask(f"select * from {{subjects}} order by messages desc, stream, subject limit {facts.top}")
    return bars([(f"{row['stream']} {row['subject']}", row["messages"]) for row in rows], "messages")


def _senders(ask: Ask, facts: Facts) -> str:
    rows = ask(f"select * from {{senders}} order by messages desc, stream, sender limit {facts.top}")
    named = [(row["sender"] or "(anonymous)", row) for row in rows]
    chart = bars([(f"{row['stream']} {name}", row["messages"]) for name, row in named], "messages")
    return chart + _table(rows)


def _intervals(ask: Ask, facts: Facts) -> str:
    counts: dict[int, int] = {}
    for row in ask("select * from {intervals} where sender is null order by bucket"):
        # Four bars for each doubling can be told apart.
        place = -1 if row["bucket"] == 0 else (row["bucket"] - 1) * 4 // EACH_DOUBLING
        counts[place] = counts.get(place, 0) + row["messages"]
    if not counts:
        return ""
    first, last = min((p for p in counts if p >= 0), default=0), max(counts)
    places = [*([-1] if -1 in counts else []), *range(first, last + 1)]
    names = {
        place: f"from {_seconds(to_seconds(2 ** (place / 4)))}" if place >= 0 else "0" for place in places
    }
    step = max(1, len(places) // 8)
    ticks = [
        Tick((n + 0.5) / len(places), names[place].removeprefix("from "))
        for n, place in enumerate(places)
        if n % step == 0
    ]
    return columns([(names[place], counts.get(place, 0)) for place in places], ticks, "messages")


def _values(ask: Ask, facts: Facts) -> str:
    return _table(
        ask(
            "select stream, header, value, messages, within from ("
            "  select *, row_number() over (partition by stream, header order by messages desc, value)"
            " as place"
            f"  from {{header_values}}) as ranked where place <= {facts.top}"
            f" order by stream, header, place limit {ROWS}"
        )
    )


def _queues(ask: Ask, facts: Facts) -> str:
    outcomes = _listed("select * from {queues} order by queue, outcome")
    return outcomes(ask, facts) + _listed("select * from {queue_times} order by queue, time")(ask, facts)


def _settlements(ask: Ask, facts: Facts) -> str:
    chart = _over_time("concat_ws(' ', queue, outcome)", RATE, "settlements")(ask, facts)
    return chart + _listed("select * from {settlements} order by mean_wait desc, queue, `window`, outcome")(
        ask, facts
    )


SECTIONS: Sequence[tuple[str, str, Section]] = (
    (
        "Damage",
        "Files and groups of rows that could not be read; -1 is a whole file.",
        _listed("select * from {damage} order by path, row_group"),
    ),
    (
        "Streams",
        "p50, p95 and p99 are of the time from one message to the next.",
        _listed("select * from {streams} order by stream"),
    ),
    ("Messages over time", "", _over_time("stream", RATE)),
    ("By subject prefix", "", _over_time("concat_ws(' ', stream, prefix)", RATE)),
    ("Top subjects", "", _subjects),
    ("New subjects", "Subjects that come for the first time.", _over_time("stream", NEW, "growth", "new")),
    ("Senders", "p50, p95 and p99 are of the time from one message of the sender to the next.", _senders),
    (
        "Late senders",
        f"Silent for a window or more, and {LATE} times as long as in 99 of 100 cases.",
        _listed(
            "select stream, sender, p50, p99, longest_silence, silent_since from {senders} where late"
            " order by longest_silence desc, stream, sender"
        ),
    ),
    ("How far apart messages are", "The time from one message of a stream to the next.", _intervals),
    (
        "Gaps",
        "Sequences that are not there.",
        _listed("select * from {gaps} order by messages desc, stream, first, last"),
    ),
    ("Headers", "", _listed("select * from {headers} order by stream, header")),
    (
        "Types of headers",
        "When a header had values of a type.",
        _listed("select * from {schema} order by stream, header, type"),
    ),
    (
        "Changes of headers",
        "Types that came later than the stream, or are there no longer.",
        _listed("select * from {changes} order by stream, time, header, type, change"),
    ),
    ("Frequent values of headers", "The last column is how many more there may be.", _values),
    (
        "Queues",
        "Queue time ends with the first delivery; processing time follows, up to the settlement.",
        _queues,
    ),
    ("Settlements over time", "Windows with the longest waits come first.", _settlements),
    (
        "Slow consumers",
        "Who fell behind, or missed messages that had been confirmed.",
        _listed("select * from {consumers} order by fell_behind desc, stream, consumer"),
    ),
    (
        "Lag over time",
        "When consumers fell behind.",
        _listed("select * from {lag} order by `window`, stream, consumer"),
    ),
    ("Events of the broker", "", _listed("select * from {events} order by times desc, event, name")),
)
"""Title, explanation, and maker of each section."""


# Tables


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    numeric = {name: any(_is_number(row[name]) for row in rows) for name in rows[0]}
    head = "".join(
        f"<th{_class(right)}>{escape(name.replace('_', ' '))}</th>" for name, right in numeric.items()
    )
    body = "".join(f"<tr>{''.join(_cells(row, numeric))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Row, numeric: Mapping[str, bool]) -> Iterator[str]:
    for name, right in numeric.items():
        value = row[name]
        words = _seconds(value) if name in SECONDS and value is not None else _words(value)
        yield f"<td{_class(right)}>{escape(words)}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _class(right: bool) -> str:
    return " class=n" if right else ""


SECONDS = frozenset({"p50", "p95", "p99", "longest_silence", "mean_wait", "mean_total"})
"""Columns of durations."""


def _words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns" if value else "0"


_LIGHT = (
    "--paper:#fff;--ink:#1c2430;--soft:#5b6675;--faint:#e3e7ec;--card:#f5f7f9;--c1:#2563ad;--c2:#c2571a;"
    "--c3:#2b8a57;--c4:#a23b72;--c5:#7a6a00;--c6:#0e8b99;--c7:#6b4fbb;--c8:#b3363e"
)
_DARK = (
    "--paper:#12161c;--ink:#e4e8ee;--soft:#9aa6b5;--faint:#2b333e;--card:#1a2028;--c1:#6aa9f0;--c2:#f0955a;"
    "--c3:#63c692;--c4:#e184b5;--c5:#d4c04a;--c6:#57c7d4;--c7:#ab93f0;--c8:#f0808a"
)
PAGE_STYLE = (
    f":root{{{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    "body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0}"
    "main{max-width:1240px;margin:0 auto;padding:24px 16px 64px}h1{margin:0}h2{margin:40px 0 8px}"
    "p{margin:8px 0;overflow-wrap:anywhere}p,nav,.cards span{color:var(--soft)}"
    "nav a{color:var(--c1);margin-right:14px;white-space:nowrap}"
    ".cards{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}"
    ".cards div{background:var(--card);border-radius:8px;padding:10px 18px}"
    ".cards b{display:block;font-size:24px}"
    ".table{overflow:auto;max-height:640px}thead th{position:sticky;top:0;background:var(--paper)}"
    "table{border-collapse:collapse;font-size:13px;margin:8px 0}"
    "th,td{padding:4px 8px;border-bottom:1px solid var(--faint);text-align:left;white-space:nowrap}"
    "th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}.n{text-align:right}td.n{font-variant-numeric:tabular-nums}"
    "@media(max-width:480px){main{padding:16px 10px 40px}h2{margin-top:28px}.cards{gap:8px}"
    ".cards div{padding:8px 12px}.cards b{font-size:19px}.table{max-height:420px}nav{line-height:2}}"
    "@media print{:root{" + _LIGHT + "}body{font-size:11px}main{max-width:none;padding:0}nav{display:none}"
    ".table{overflow:visible;max-height:none}table{font-size:8px}thead th{position:static}"
    "th,td{padding:2px 4px;white-space:normal}td.n{white-space:nowrap}tr,figure,.cards{break-inside:avoid}"
    "h2{break-after:avoid}*{print-color-adjust:exact}}"
)
