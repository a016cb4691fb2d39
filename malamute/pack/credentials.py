"""The credentials for the source of a link, by the name of a context or a file of contexts.

A context is for its own URL, and its credentials are given to no other broker: who sets a link chooses its
URLs, but not who learns the passwords of the runner. A link without a context has no credentials at all, and
none of those that the runner has in its environment for its own broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from malamute.client.contexts import InvalidContext, file_of, load
from malamute.client.session.route import urls_of


def credentials_for(name: str, urls: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials for the URLs of a link, as arguments of `connect`.

    Raises:
        InvalidContext: there is no such context, or it is for other URLs.
    """
    if not name:
        return {}
    is_path = "/" in name
    contexts = load(Path(name) if is_path else file_of(environ))
    context = contexts.get(contexts.current if is_path else name)
    own = urls_of(context.url or "")
    if others := [url for url in urls if url not in own]:
        raise InvalidContext(
            f"context {name!r} is for {', '.join(own) or 'no URL'}, and has no credentials for "
            f"{', '.join(others)}: expected the URLs of the link as its url"
        )
    return context.credentials()
