"""Pages of feeds, users and rules, and of the settings in force."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import MalamuteError
from malamute.gateway.console.streams import FIND, PAGE, arguments_of, sheet
from malamute.gateway.console.visits import Visit, visit_of
from malamute.gateway.console.words import plain, spaced
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.gateway.settings import GatewaySettings
from malamute.protocol.admin import (
    AccessQuery,
    AdminQuery,
    FeedsQuery,
    GroupsQuery,
    OptionsQuery,
    QuotasQuery,
    StatusQuery,
    StorageQuery,
    StoredQuery,
    UsersQuery,
)

SECRET = frozenset({"credentials"})
"""Settings of the gateway that no page shows."""


async def feeds(request: Request, arguments: Arguments) -> Response:
    """Show the feeds."""
    visit = visit_of(request)
    listed = await visit.listed("feeds", FeedsQuery())
    return visit.page("feeds.html", listed=listed)


async def users(request: Request, arguments: Arguments) -> Response:
    """Show the users, their rules, and the use of their quota."""
    visit = visit_of(request)
    listed = await visit.listed("users", UsersQuery())
    quotas = await visit.listed("quotas", QuotasQuery())
    groups = await visit.listed("groups", GroupsQuery())
    found = [row for row in listed.rows if arguments["find"] in row.name]
    access, problem = None, ""
    if arguments["user"]:
        query = AccessQuery(user=arguments["user"], action=arguments["action"], target=arguments["target"])
        access, problem = await _tried(visit, query)
    return visit.page(
        "users.html",
        listed=listed,
        sheet=sheet(found, arguments["page"]),
        quotas=quotas,
        groups=groups,
        asked=arguments,
        access=access,
        problem=problem,
        **arguments_of(arguments),
    )


async def settings(request: Request, arguments: Arguments) -> Response:
    """Show the settings in force in the broker and in the gateway, and since when."""
    visit = visit_of(request)
    status, no_status = await _tried(visit, StatusQuery())
    options, _ = await _tried(visit, OptionsQuery())
    storage, no_storage = await _tried(visit, StorageQuery())
    stored = await visit.listed("stored", StoredQuery())
    own, default = visit.console.gateway.settings, GatewaySettings()
    gateway = [
        (spaced(name), plain(getattr(own, name)), plain(getattr(default, name)))
        for name in (one.name for one in fields(own) if one.name not in SECRET)
    ]
    return visit.page(
        "settings.html",
        broker_status=status,
        options=options or [],
        storage=storage,
        refusal=no_status or no_storage,
        stored=stored,
        gateway=gateway,
    )


async def _tried(visit: Visit, query: AdminQuery[Any]) -> tuple[Any, str]:
    """Return the answer to a query, or the reason why it has none."""
    try:
        return await visit.ask(query), ""
    except MalamuteError as error:
        return None, error.text


def _text(name: str, words: str) -> Parameter:
    return Parameter(name, words, {"type": "string", "default": ""})


ENDPOINTS = (
    Endpoint("GET", "/console/feeds", feeds, "Feeds"),
    Endpoint(
        "GET",
        "/console/users",
        users,
        "Users and rules",
        (
            FIND,
            PAGE,
            _text("user", "The user of the check."),
            _text("action", "The action of the check."),
            _text("target", "The resource of the check."),
        ),
    ),
    Endpoint("GET", "/console/settings", settings, "Settings"),
)
