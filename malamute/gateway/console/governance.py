"""Pages of feeds, links, users and rules, and of the settings in force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.door.docstrings import docstrings
from malamute.errors import MalamuteError
from malamute.gateway.console.streams import FIND, PAGE, arguments_of, sheet
from malamute.gateway.console.visits import Visit, visit_of
from malamute.gateway.console.words import plain
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.gateway.settings import GatewaySettings
from malamute.protocol.admin import (
    AccessQuery,
    AdminQuery,
    BrokerOption,
    FeedsQuery,
    GroupsQuery,
    LinksQuery,
    OptionsQuery,
    QuotasQuery,
    StatusQuery,
    StorageQuery,
    StoredQuery,
    UsersQuery,
)

CHANGED = Parameter("changed", "Only values other than the default.", {"type": "boolean", "default": False})

SECRET = frozenset({"credentials"})
"""Settings of the gateway that no page shows."""


async def feeds(request: Request, arguments: Arguments) -> Response:
    """Show the feeds."""
    visit = visit_of(request)
    listed = await visit.listed("feeds", FeedsQuery())
    return visit.page("feeds.html", listed=listed)


async def links(request: Request, arguments: Arguments) -> Response:
    """Show the links."""
    visit = visit_of(request)
    return visit.page("links.html", listed=await visit.listed("links", LinksQuery()))


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
    groups: dict[str, list[BrokerOption]] = {}
    for option in (*(options or ()), *_own_options(visit.console.gateway.settings)):
        words = f"{option.name} {option.value} {option.description}".lower()
        is_shown = option.value != option.default or not arguments["changed"]
        if is_shown and arguments["find"].lower() in words:
            groups.setdefault(option.name.partition(".")[0], []).append(option)
    return visit.page(
        "settings.html",
        broker_status=status,
        groups=groups,
        find=arguments["find"],
        changed=arguments["changed"],
        storage=storage,
        refusal=no_status or no_storage,
        stored=stored,
    )


def _own_options(own: GatewaySettings) -> Iterator[BrokerOption]:
    """Yield the settings of the gateway as those of the broker are shown."""
    default, words = GatewaySettings(), docstrings(GatewaySettings)
    for name in (one.name for one in fields(own) if one.name not in SECRET):
        value, usual = getattr(own, name), getattr(default, name)
        yield BrokerOption(
            name=f"gateway.{name}",
            value=plain(value),
            default=plain(usual),
            source="default" if value == usual else "option",
            changed_since_start=False,
            needs_restart=True,
            waiting_for_restart=False,
            description=" ".join(words.get(name, "The endpoint of the broker.").split()),
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
    Endpoint("GET", "/console/links", links, "Links"),
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
    Endpoint("GET", "/console/settings", settings, "Settings", (FIND, CHANGED)),
)
