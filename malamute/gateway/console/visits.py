"""One request to the console: its user, and the queries of its page to the broker."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from hmac import compare_digest
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from malamute.aio import Client
from malamute.errors import AccessRefused, ConnectionLost, LinkError, LoginNeeded, OriginRefused
from malamute.gateway.addresses import outside
from malamute.gateway.console.rendering import HEADERS, render
from malamute.gateway.console.sessions import ConsoleSession, ConsoleSessions
from malamute.gateway.console.watch import BrokerWatch, Watches
from malamute.gateway.forms import fields_of
from malamute.gateway.state import Gateway, gateway_of
from malamute.protocol.admin import AdminChange, AdminQuery
from malamute.version import __version__

Answer = TypeVar("Answer")

ANSWER_SECONDS = 5.0
"""How long a page waits for the broker."""

FORM_FIELDS_MAX = 1_000

LIST_ROWS = 200
"""Rows that a page queries itself; longer lists come from the watch."""

SIGN_IN = "/console/sign-in"

RENEWS = "malamute-renews"
"""The header of a request by a page that refreshes itself."""

NAVIGATION = (
    ("/", "Overview", "o"),
    ("/console/streams", "Streams", "s"),
    ("/console/queues", "Queues", "q"),
    ("/console/consumers", "Consumers", "c"),
    ("/console/clients", "Clients", "l"),
    ("/console/feeds", "Feeds", "f"),
    ("/console/links", "Links", "k"),
    ("/console/explain", "Explain", "e"),
    ("/console/users", "Users and rules", "u"),
    ("/console/settings", "Settings", "t"),
)
"""The pages of the menu: path, name, and the key that leads there after `g`."""


class Console:
    """The state shared by the pages of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.sessions = ConsoleSessions()
        self.answer_seconds = min(gateway.settings.timeout_seconds, ANSWER_SECONDS)
        self.watches = Watches(gateway.users, self.answer_seconds)


class Listed(NamedTuple):
    """The rows of a list, and whether they are all; the reason if the user may not view them."""

    rows: list[Any]
    complete: bool = True
    refusal: str = ""


class Visit:
    """A request to the console, of an admitted user."""

    def __init__(self, request: Request, console: Console, session: ConsoleSession) -> None:
        self.request = request
        self.console = console
        self.session = session
        self.is_lost = False
        """Whether the page has the last data of a broker that is lost."""
        # The gateway's own paths act as this user, too.
        request.scope["malamute.identity"] = session.identity

    @property
    def watch(self) -> BrokerWatch:
        """Return the watch, with the figures of the last while."""
        return self.console.watches.of(self.session.identity)

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Return a client that acts as the user. Raises as `Users.session`."""
        return self.console.gateway.users.session(self.session.identity)

    async def ask(self, query: AdminQuery[Answer]) -> Answer:
        """Query the broker. Raises its refusal."""
        async with self.client() as client:
            return await client.query(query, timeout=self.console.answer_seconds)

    async def change(self, change: AdminChange[Answer]) -> Answer:
        """Change something in the broker, or make a dry run. Raises its refusal."""
        async with self.client() as client:
            return await client.change(change, timeout=self.console.answer_seconds)

    async def listed(self, what: str, query: AdminQuery[Any]) -> Listed:
        """Return all rows of a paged query: from the broker, or from the watch if they are many.

        While the broker is lost, they are the last ones that the watch has.
        """
        known = self.watch.found(what)
        try:
            if self.watch.failure and known is not None:
                raise ConnectionLost(self.watch.failure)
            return await self._asked(what, query)
        except AccessRefused as error:
            return Listed([], refusal=error.text)
        except LinkError:
            if known is None:
                raise
            self.is_lost = True
            return Listed(known)

    async def _asked(self, what: str, query: AdminQuery[Any]) -> Listed:
        if not self.watch.looks_at(what):
            return Listed(await self.ask(query))
        page = _page_of(query)
        rows = await self.ask(page)
        if not rows or not await self.ask(_page_of(page, after_name=getattr(rows[-1], query.page_key))):
            return Listed(rows)
        known = self.watch.found(what)
        return Listed(rows, complete=False) if known is None else Listed(known)

    async def form(self) -> dict[str, list[str]]:
        """Return the fields of a form that a page of this console has sent.

        Raises:
            OriginRefused: a page of another site may have sent it.
            Malformed: the body is no form.
        """
        check_origin(self.request)
        fields = await read_form(self.request, self.session.user)
        if not compare_digest(fields.get("csrf", [""])[0].encode(), self.session.csrf.encode()):
            raise OriginRefused("a form without the secret of its session: load its page again")
        return fields

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Fill the template of a page."""
        settings = self.console.gateway.settings
        return render(
            template,
            status,
            **values,
            here=self.request.url.path,
            address=str(self.request.url.path) + (f"?{q}" if (q := self.request.url.query) else ""),
            navigation=NAVIGATION,
            session=self.session,
            # A page that refreshes itself would take the notes without showing them.
            notes=[] if RENEWS in self.request.headers else self.session.pop_notes(),
            broker=settings.broker,
            data_of=self.watch.answered_at if self.is_lost else 0.0,
            version=__version__,
        )


def _page_of(query: AdminQuery[Any], **more: Any) -> AdminQuery[Any]:
    return replace(query, limit=LIST_ROWS, **more)


def check_origin(request: Request) -> None:
    """Check that a page of this very console sends a request. Raises `OriginRefused`.

    The sites of `--allow-origin` may use the API, and not this.
    """
    origin = request.headers.get("origin", "")
    host = origin.lower().partition("://")[2]
    if not host or host != request.headers.get("host", "").lower():
        raise OriginRefused(f"a form from a page of {origin[:100]!r}: expected one of this console")


async def read_form(request: Request, who: str, limit_bytes: int = 0) -> dict[str, list[str]]:
    """Return the fields of a form. Raises as `fields_of`, and as `BodyRoom.read`."""
    room = gateway_of(request).bodies
    body = await room.read(request, who, limit_bytes)
    pairs = await room.built(body, partial(fields_of, body, FORM_FIELDS_MAX))
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        # Forms send line ends as two characters.
        fields.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return fields


def visit_of(request: Request) -> Visit:
    """Return the visit of a request. Raises `LoginNeeded`."""
    visit: Visit | None = getattr(request.state, "visit", None)
    if visit is None:
        console: Console = request.app.state.console
        request.state.visit = visit = Visit(request, console, _session_of(request, console))
    return visit


def _session_of(request: Request, console: Console) -> ConsoleSession:
    if session := console.sessions.of(request):
        return session
    if console.gateway.serves_anonymous(request):
        return console.sessions.anonymous
    raise LoginNeeded("no session of the console: sign in")


def redirect(path: str) -> Response:
    """Redirect a browser to a page of the console."""
    return RedirectResponse(outside(path), 303, HEADERS)
