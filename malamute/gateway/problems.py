"""Errors as problem documents (RFC 9457), and the HTTP status of each."""

from __future__ import annotations

from math import ceil

import msgspec
from starlette.responses import Response

from malamute import errors
from malamute.errors import BY_CODE, MalamuteError
from malamute.gateway.addresses import outside

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[MalamuteError], int] = {
    errors.MalamuteError: 500,
    errors.Malformed: 400,
    errors.AccessRefused: 403,
    errors.NotFound: 404,
    errors.UnexpectedCommand: 502,
    errors.UnsupportedVersion: 502,
    errors.AddressTaken: 409,
    errors.Disconnected: 403,
    errors.NotAsExpected: 412,
    errors.TooLarge: 413,
    errors.InvalidName: 400,
    errors.InvalidSelector: 400,
    errors.InvalidValue: 400,
    errors.InvalidRule: 400,
    errors.NotOutstanding: 410,
    errors.TrackerInUse: 409,
    errors.InUse: 409,
    errors.CursorLost: 410,
    errors.TooMany: 429,
    errors.QuotaExceeded: 429,
    errors.UnknownCommand: 501,
    errors.TryLater: 503,
    errors.NoWorkers: 503,
    errors.StorageFull: 507,
    errors.LinkError: 503,
    errors.TimedOut: 504,
    errors.NoSuchResource: 404,
    errors.MethodRefused: 405,
    errors.MediaTypeRefused: 415,
    errors.RequestTimeout: 408,
    errors.LoginNeeded: 401,
    errors.OriginRefused: 403,
    errors.KeyReused: 422,
    errors.TooFast: 429,
}
"""The status of each error; other errors have the status of their base class."""

RETRY_SECONDS = 1
"""Retry-After in seconds for errors that may pass at an unknown time."""

_TELL_WHEN = (errors.QuotaExceeded, errors.TooFast)
"""Errors with a wait of their own: without one, no time helps."""

_HEADERS: dict[int, dict[str, str]] = {
    401: {"www-authenticate": 'Basic realm="malamute", charset="UTF-8", Bearer realm="malamute"'},
    # The rest of the body is not read.
    408: {"connection": "close"},
    413: {"connection": "close"},
    429: {"retry-after": str(RETRY_SECONDS)},
    503: {"retry-after": str(RETRY_SECONDS)},
}


def status_of(error: type[MalamuteError]) -> int:
    """Return the HTTP status of an error class."""
    return next(STATUS[base] for base in error.__mro__ if base in STATUS)


def title_of(error: type[MalamuteError]) -> str:
    """Return the title of an error class."""
    return (error.__doc__ or "").partition("\n")[0].removeprefix("Raised when ").rstrip(".")


def document(error: MalamuteError) -> dict[str, object]:
    """Return the problem document of an error."""
    kind = type(error)
    when = {"retry_after": error.retry_after} if error.retry_after else {}
    return {
        "type": outside(f"/v1/problems/{error.code}") if kind.code in BY_CODE else "about:blank",
        "title": title_of(kind),
        "status": status_of(kind),
        "detail": error.text,
        "code": error.code,
        "hint": error.hint,
        **when,
    }


def response(error: MalamuteError) -> Response:
    """Return the answer to a request that ended with an error."""
    status = status_of(type(error))
    headers = {**_HEADERS.get(status, {})}
    if isinstance(error, _TELL_WHEN):
        del headers["retry-after"]
    if error.retry_after:
        headers["retry-after"] = str(ceil(error.retry_after))
    return Response(msgspec.json.encode(document(error)) + b"\n", status, headers, media_type=MEDIA_TYPE)
