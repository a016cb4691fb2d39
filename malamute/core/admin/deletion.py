"""Deletions with their dependents.

Without `cascade` a deletion is refused while anything depends on its object, and the refusal lists that. With
it the feeds end first, each with a commit of its own, and then the rest is one commit: readers are notified
of the reason when that is durable. So if the broker dies or the disk refuses the last commit, some feeds may
have ended and nothing else, and the answer is `partial`; a repeat continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.streams import stream_of
from malamute.core.iteration.workflow import GO_ON, Stored, Workflow, run_workflow
from malamute.core.stream.deletion import delete
from malamute.core.stream.start import removed
from malamute.core.stream.subscription import Subscription
from malamute.errors import InUse, MalamuteError, NotFound, TryLater
from malamute.protocol.admin import Row, StreamDelete, StreamDeleted
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.names import Place

if TYPE_CHECKING:
    from malamute.core.feed.table import Feeds
    from malamute.core.iteration.effects import Effects
    from malamute.core.link.table import Links
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

Gone = TypeVar("Gone", bound=Row)

LISTED_MAX = 5
"""Of each kind that hangs on something so many are in a refusal."""

END_WORK = 20
"""Work that it takes to end a subscription."""


def delete_stream(
    effects: Effects,
    streams: Streams,
    feeds: Feeds,
    links: Links,
    wanted: StreamDelete,
    outcome: ChangeOutcome,
) -> None:
    """Remove a stream with its history, and with all that hangs on it to `cascade`."""
    stream = stream_of(streams, wanted.stream)
    _check_changes(feeds, stream.name)
    _check_links(links, stream.name)
    stream.flush()
    gone = _deleted(feeds, stream)
    if not wanted.cascade:
        _check_unused(stream, gone)
    if wanted.dry_run:
        outcome.answered(gone, before=gone)
    else:
        run_workflow(effects, _deletion(effects, streams, feeds, links, stream, gone, outcome))


def _deletion(
    effects: Effects,
    streams: Streams,
    feeds: Feeds,
    links: Links,
    stream: Stream,
    gone: StreamDeleted,
    outcome: ChangeOutcome,
) -> Workflow:
    place, answer = Place("stream", stream.name), partial(outcome.answered, before=gone)
    feeds_only = replace(gone, partial=True)
    otherwise = yield from end_feeds(feeds, place, feeds_only, answer)
    try:
        _check_still(streams, feeds, stream)
        _check_links(links, stream.name)
    except MalamuteError:
        if otherwise is None:
            raise
        answer(otherwise, otherwise=otherwise)
        return
    stream.flush()
    readers = _readers(stream)

    def deleted() -> None:
        effects.event(f"stream.deleted.{stream.name}", first=gone.first, last=gone.last)
        run_workflow(effects, _end(effects, readers, NotFound(f"stream {stream.name!r} was deleted")))

    delete(streams, stream, deleted)
    feeds.forget(place)
    answer(gone, otherwise=otherwise)


def end_feeds(
    feeds: Feeds, place: Place, some: Gone, answer: Callable[..., None]
) -> Generator[Stored, Any, Gone | None]:
    """End the feeds of a source. Returns `some`, the outcome so far, if any has ended.

    Raises the error of the disk if none had ended before.
    """
    otherwise: Gone | None = None

    def ending(sequence: int | None, *, created: bool) -> None:
        answer(some, final=False, otherwise=otherwise)

    for name in feeds.of(place):
        error = yield from feeds.deletion(name, ending)
        if error is None:
            otherwise = some
        elif otherwise is None and not isinstance(error, NotFound):
            raise error
    return otherwise


def _check_still(streams: Streams, feeds: Feeds, stream: Stream) -> None:
    """Raise the reason against the deletion of a stream by now: new readers may have come meanwhile."""
    _check_changes(feeds, stream.name)
    if streams.by_name.get(stream.name) is not stream:
        raise removed(stream.name)
    if feeds.of(Place("stream", stream.name)):
        raise TryLater(f"stream {stream.name!r} has feeds yet: retry later")


def _end(effects: Effects, readers: Sequence[Subscription], reason: NotFound) -> Workflow:
    """End subscriptions, so many of them in each iteration."""
    for reader in readers:
        if effects.work <= 0:
            yield GO_ON
        effects.work -= END_WORK
        reader.fail(reason)


def _check_changes(feeds: Feeds, stream: str) -> None:
    """Raise `TryLater` while a feed from a stream or to it is being changed."""
    feeds.check_stream(stream)
    feeds.check_no_target(Place("stream", stream))


def _check_links(links: Links, stream: str) -> None:
    """Raise `InUse` while a link goes into a stream: with the stream it would lose how far it has come."""
    if found := hanging({"link": links.of(stream)}):
        raise InUse(f"stream {stream!r} is in use: {found}; remove them first")


def _check_unused(stream: Stream, gone: StreamDeleted) -> None:
    """Raise `InUse` with the dependents of a stream, if any."""
    readers = (f"{reader.session.ident} ({reader.source})" for reader in _readers(stream))
    if found := hanging({"reader": readers, "cursor": _own_cursors(stream), "feed": gone.feeds}):
        raise InUse(f"stream {stream.name!r} is in use: {found}; end them, or delete it with cascade")


def hanging(names: Mapping[str, Iterable[str]]) -> str:
    """Return dependents in words: the number of each kind, and some of their names."""
    return "; ".join(words for what, some in names.items() if (words := _listed(what, [*some])))


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown, more = names[:LISTED_MAX], len(names) - LISTED_MAX
    return f"{len(names)} {what}{'s' * (len(names) > 1)}: {', '.join(shown)}{', …' * (more > 0)}"


def _readers(stream: Stream) -> list[Subscription]:
    everybody = chain.from_iterable(group.members.values() for group in stream.audience.groups())
    return [reader for reader in everybody if isinstance(reader, Subscription)]


def _own_cursors(stream: Stream) -> list[str]:
    """The cursors of a stream, but for those of feeds: they go with these."""
    return [name for name in chain(stream.cursors, stream.cursors.lost) if not name.startswith(FEED_PREFIX)]


def _deleted(feeds: Feeds, stream: Stream) -> StreamDeleted:
    return StreamDeleted(
        stream=stream.name,
        first=stream.progress.first_kept,
        last=stream.progress.last,
        cursors=len(_own_cursors(stream)),
        readers=len(_readers(stream)),
        feeds=[str(name) for name in feeds.of(Place("stream", stream.name))],
    )
