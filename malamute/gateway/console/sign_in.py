"""Signing in and out: the broker accepts the credentials, and a cookie stands for them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import LoginNeeded, MalamuteError
from malamute.gateway import problems
from malamute.gateway.console.rendering import render
from malamute.gateway.console.sessions import COOKIE, LIFE_SECONDS, SECURE_COOKIE
from malamute.gateway.console.visits import SIGN_IN, Console, check_origin, read_form, redirect, visit_of
from malamute.gateway.door import STRANGER_BYTES
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.gateway.users import PEER, Identity

SIGN_OUT = "/console/sign-out"

NEXT = Parameter("next", "The page to go on with.", {"type": "string", "default": "/"})


async def show(request: Request, arguments: Arguments) -> Response:
    """Show the page that asks for credentials."""
    return render("sign_in.html", next=own_path(arguments["next"]), problem="")


async def sign_in(request: Request, arguments: Arguments) -> Response:
    """Begin a session, if the broker accepts the credentials."""
    check_origin(request)
    fields = await read_form(request, f"at {PEER.get()}", STRANGER_BYTES)
    user, password, token, following = (
        fields.get(name, [""])[0] for name in ("user", "password", "token", "next")
    )
    console: Console = request.app.state.console
    identity = Identity(token=token.strip()) if token.strip() else Identity(user, password)
    following = own_path(following)
    try:
        if not (identity.token or identity.user):
            raise LoginNeeded("no credentials: expected user and password, or a token")
        owner = await console.gateway.users.prove(identity)
        # The next user of this browser must not find the credentials of the last one.
        if former := console.sessions.of(request):
            console.sessions.end(former)
        session = console.sessions.start(identity, owner.user)
        console.watches.of(identity)
    except MalamuteError as error:
        return render("sign_in.html", problems.status_of(type(error)), next=following, problem=error.text)
    response = redirect(following)
    secure = request.headers["origin"].lower().startswith("https:")
    cookie = SECURE_COOKIE if secure else COOKIE
    response.set_cookie(
        cookie, session.name, int(LIFE_SECONDS), secure=secure, httponly=True, samesite="strict"
    )
    return response


async def sign_out(request: Request, arguments: Arguments) -> Response:
    """End the session."""
    visit = visit_of(request)
    console, session = visit.console, visit.session
    console.sessions.end(session)
    if session is not console.sessions.anonymous and not console.sessions.has(session.identity):
        console.watches.end(session.identity)
    response = redirect(SIGN_IN)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    response.delete_cookie(SECURE_COOKIE, secure=True, httponly=True, samesite="strict")
    return response


def own_path(path: str) -> str:
    """Return a path of this console: a link from elsewhere must not lead away from it."""
    inside = path == "/" or path.startswith("/console/")
    return path if inside and path.isprintable() and "\\" not in path else "/"


ENDPOINTS = (
    Endpoint("GET", SIGN_IN, show, "Sign in.", (NEXT,)),
    Endpoint("POST", SIGN_IN, sign_in, "Sign in."),
)
"""The paths for requests without a session."""

SIGNED_IN = (Endpoint("POST", SIGN_OUT, sign_out, "Sign out."),)
