"""Liveness of the gateway, readiness of the broker, and explanations of error numbers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import BY_CODE, NotFound
from malamute.gateway import bodies, problems
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.state import gateway_of
from malamute.gateway.users import ANONYMOUS


async def live(request: Request, arguments: Arguments) -> Response:
    """Answer that the process is alive."""
    return bodies.answer({"status": "live"})


async def ready(request: Request, arguments: Arguments) -> Response:
    """Ping the broker."""
    gateway = gateway_of(request)
    async with gateway.users.session(ANONYMOUS) as client:
        await client.flush(gateway.settings.timeout_seconds)
    return bodies.answer({"status": "ready"})


async def problem(request: Request, arguments: Arguments) -> Response:
    """Explain the number of an error.

    Raises:
        NotFound: no error has this number.
    """
    code = arguments["code"]
    if code not in BY_CODE:
        raise NotFound(f"no error has the number {code}")
    return bodies.answer(problems.document(BY_CODE[code]()))


ENDPOINTS = (
    Endpoint("GET", "/live", live, "Whether the gateway runs.", answers={200: Documented("It does.")}),
    Endpoint(
        "GET",
        "/ready",
        ready,
        "Whether the broker answers the gateway.",
        answers={200: Documented("It does.")},
        problems=(503, 504),
    ),
    Endpoint(
        "GET",
        "/v1/problems/{code}",
        problem,
        "The meaning of an error number, and the next step.",
        (Parameter("code", "The number of the error.", {"type": "integer", "minimum": 1}, "path"),),
        answers={200: Documented("The error.")},
        problems=(404,),
    ),
)
