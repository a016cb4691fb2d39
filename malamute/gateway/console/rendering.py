"""Templates and the files beside them, as the package carries them."""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from malamute.errors import NoSuchResource
from malamute.gateway.addresses import outside
from malamute.gateway.console import words
from malamute.gateway.routes import Arguments

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: only the console's own files, no script in the page itself."""

HEADERS = {
    "content-security-policy": POLICY,
    # Without a referrer policy a browser sends `Origin: null` with a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every page."""

STATIC = "/console/static/"

_LINK = re.compile(r'\b(href|src|action|data-[a-z]+)="(/[^"]*)"')
"""An attribute of a page with a path of the gateway."""

_TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


class StaticFile(NamedTuple):
    """A file of the console: its content and type, and a digest for its address."""

    data: bytes
    media_type: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """The files that pages load, by name."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        data = file.read_bytes()
        kind = _TYPES[file.name.rpartition(".")[2]]
        found[file.name] = StaticFile(data, kind, blake2b(data, digest_size=6).hexdigest())
    return found


def static_url(name: str) -> str:
    """Return the address of a file. New content has a new address, so browsers may cache it."""
    return f"{STATIC}{name}?v={static_files()[name].version}"


async def static(request: Request, arguments: Arguments) -> Response:
    """Return a file of the console. Raises `NoSuchResource`."""
    file = static_files().get(arguments["name"])
    if file is None:
        raise NoSuchResource(f"the console has no file {arguments['name'][:100]!r}")
    lasting = arguments["v"] == file.version
    headers = {"cache-control": "max-age=31536000, immutable" if lasting else "no-cache"}
    return Response(file.data, headers=headers, media_type=file.media_type)


@cache
def environment() -> Environment:
    """Return the templates. All of them escape, and an undefined name in a template is an error."""
    found = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(words.FILTERS)
    found.globals.update(link=words.link, static_url=static_url)
    return found


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Fill a template."""
    text = environment().get_template(template).render(**values)
    # Escaped text from others has no quotes of its own, and is in no such attribute.
    text = _LINK.sub(lambda link: f'{link[1]}="{outside(link[2])}"', text)
    return HTMLResponse(text, status, HEADERS)
