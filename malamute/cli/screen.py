"""The screen of `malamute top`, and its keys. Pure: snapshots and keys in, a picture out.

A *view* is a table with a key of its own. `Look` has a person's choices; `press` returns the next one. Rates
are differences between two snapshots, so the first picture has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.cli.keyboard import LEAVING
from malamute.cli.tables import cell

if TYPE_CHECKING:
    from rich.console import Group

    from malamute.protocol import admin

Rows = list[dict[str, Any]]

HEADING_LINES = 6
"""Lines of the screen besides the rows of the table."""


class Snapshot(NamedTuple):
    """A broker's answers at one time, in seconds of any clock."""

    at_seconds: float
    status: admin.BrokerStatus
    streams: Sequence[admin.StreamRow]
    mailboxes: Sequence[admin.QueueRow]
    services: Sequence[admin.QueueRow]
    clients: Sequence[admin.ClientRow | admin.ClientDetails]

    def as_map(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        from malamute.protocol import admin

        return {name: admin.encode(value) for name, value in self._asdict().items()}


class Look(NamedTuple):
    """A person's choices: the view, the column by which it is sorted, the first row."""

    view: int = 0
    column: int = 0
    reverse: bool = False
    top: int = 0
    paused: bool = False


def _streams(now: Snapshot, before: Snapshot | None) -> Rows:
    earlier = {row.name: row.published for row in before.streams} if before else {}
    return [
        {
            "stream": row.name,
            "messages/s": rate(row.published, earlier.get(row.name), now, before),
            "last": row.last,
            "kept from": row.first,
            "selectors": row.selectors,
        }
        for row in now.streams
    ]


def _queues(now: Snapshot, before: Snapshot | None) -> Rows:
    return [
        {
            "queue": f"{kind} {row.name}",
            "messages": row.messages,
            "ready": row.ready,
            "consumers": row.consumers,
            "dead_letters": row.dead_letters,
            "oldest s": row.oldest_age,
            "bytes": row.bytes,
        }
        for kind, rows in (("mailbox", now.mailboxes), ("service", now.services))
        for row in rows
    ]


def _clients(now: Snapshot, before: Snapshot | None) -> Rows:
    rates = client_rates(now, before)
    return [
        {
            "client": row.address or row.id,
            "user": row.user,
            "sent/s": rates[row.id][0],
            "received/s": rates[row.id][1],
            "connected": row.connected,
            "subscriptions": row.subscriptions,
            "offers": row.offers,
            "holding": row.holding,
            "software": row.software,
        }
        for row in now.clients
    ]


def _users(now: Snapshot, before: Snapshot | None) -> Rows:
    rates = client_rates(now, before)
    users: dict[str, list[admin.ClientRow | admin.ClientDetails]] = {}
    for row in now.clients:
        users.setdefault(row.user, []).append(row)
    return [
        {
            "user": user or "(no name)",
            "sent/s": _sum(rates[row.id][0] for row in rows),
            "received/s": _sum(rates[row.id][1] for row in rows),
            "clients": len(rows),
            "holding": sum(row.holding for row in rows),
        }
        for user, rows in users.items()
    ]


def client_rates(now: Snapshot, before: Snapshot | None) -> Mapping[str, tuple[float | None, float | None]]:
    """Return messages per second that each client has sent and received, by its id."""
    earlier = {row.id: row for row in before.clients} if before else {}
    rates = {}
    for row in now.clients:
        then = earlier.get(row.id)
        rates[row.id] = (
            rate(row.sent, then.sent if then else None, now, before),
            rate(row.received, then.received if then else None, now, before),
        )
    return rates


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [one for one in rates if one is not None]
    return sum(known) if known else None


View = Callable[[Snapshot, Snapshot | None], Rows]

VIEWS: Mapping[str, View] = {
    "streams": _streams,
    "queues": _queues,
    "clients": _clients,
    "users": _users,
}


def rate(value: float | None, earlier: float | None, now: Snapshot, before: Snapshot | None) -> float | None:
    """Return the growth per second; None if it is unknown, or the count began anew."""
    if (
        before is None
        or value is None
        or earlier is None
        or value < earlier
        or now.at_seconds <= before.at_seconds
    ):
        return None
    return (value - earlier) / (now.at_seconds - before.at_seconds)


def arranged(look: Look, rows: Rows) -> Rows:
    """Return the rows, sorted. Numbers begin with the highest; missing ones come last."""
    if not rows:
        return rows
    column = [*rows[0]][look.column % len(rows[0])]
    known = [row for row in rows if row[column] is not None]
    numeric = all(isinstance(row[column], int | float) for row in known)
    known.sort(key=lambda row: row[column], reverse=numeric != look.reverse)
    return known + [row for row in rows if row[column] is None]


def press(look: Look, key: str) -> Look | None:
    """Return the look after a key; None for a key that ends the program. Other keys do nothing."""
    if key in LEAVING:
        return None
    change = KEYS.get(key)
    return change(look) if change else look


KEYS: Mapping[str, Callable[[Look], Look]] = {
    "\t": lambda look: Look((look.view + 1) % len(VIEWS), paused=look.paused),
    **{
        str(place + 1): lambda look, place=place: Look(place, paused=look.paused)  # type: ignore[misc]  # bound
        for place in range(len(VIEWS))
    },
    "s": lambda look: look._replace(column=look.column + 1, top=0),
    "S": lambda look: look._replace(column=max(look.column - 1, 0), top=0),
    "\x1b[C": lambda look: look._replace(column=look.column + 1, top=0),
    "\x1b[D": lambda look: look._replace(column=max(look.column - 1, 0), top=0),
    "r": lambda look: look._replace(reverse=not look.reverse, top=0),
    " ": lambda look: look._replace(paused=not look.paused),
    "j": lambda look: look._replace(top=look.top + 1),
    "k": lambda look: look._replace(top=max(look.top - 1, 0)),
    "\x1b[B": lambda look: look._replace(top=look.top + 1),
    "\x1b[A": lambda look: look._replace(top=max(look.top - 1, 0)),
}
"""Functions of the keys. A terminal sends the arrows as three characters."""

HELP = "1 2 3 4 Tab view   ← → s sort   r reverse   ↑ ↓ scroll   space pause   q quit"


def summary(now: Snapshot, before: Snapshot | None) -> str:
    """Return the broker in a line."""
    status = now.status
    earlier = before.status.messages_published if before else None
    speed = rate(status.messages_published, earlier, now, before)
    return (
        f"up {_span(status.uptime)}   {status.clients} clients   "
        f"{'-' if speed is None else f'{speed:,.0f}'} messages/s   "
        f"queues {status.queue_bytes:,} B   backlog {status.backlog_bytes:,} B"
    )


def _span(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days} d {clock}" if days else clock


def picture(look: Look, now: Snapshot, before: Snapshot | None, *, title: str, lines: int) -> Group:
    """Return the screen: a line about the broker, the names of the views, the table, and the keys."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    names = [*VIEWS]
    name = names[look.view]
    rows = arranged(look, VIEWS[name](now, before))
    table = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, show_edge=False)
    for place, column in enumerate(rows[0] if rows else ()):
        chosen = place == look.column % len(rows[0])
        numeric = any(isinstance(row[column], int | float) for row in rows)
        arrow = " ↑" if look.reverse else " ↓"
        style = "reverse" if chosen else ""
        heading = Text(column + (arrow if chosen else ""), style)
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    top = max(min(look.top, len(rows) - 1), 0)
    for row in rows[top : top + max(lines - HEADING_LINES, 1)]:
        table.add_row(*(Text(cell(column, value)) for column, value in row.items()))
    tabs = Text("   ").join(
        Text(f"{place + 1} {one}", "bold reverse" if one == name else "") for place, one in enumerate(names)
    )
    paused = Text("   paused", "bold") if look.paused else Text()
    body = table if rows else Text(f"\n  no {name}\n")
    parts = [Text(title, "bold"), Text(summary(now, before)), tabs + paused, body, Text(HELP, "dim")]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)
