"""The beginning of a subscription: its position in this store, its gaps, and its cursor.

A position may be one in another store, of a broker that the client was connected to before. Such a position
is invalid here: the subscription begins with the oldest message, and its client is notified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malamute.core.stream.start import locate
from malamute.core.stream.subscription import Position, Subscription
from malamute.errors import InvalidValue, QuotaExceeded, TooMany
from malamute.protocol.messages import ANOTHER_STORE, Subscribe
from malamute.protocol.position import StorePosition
from malamute.protocol.start import AFTER, FIRST, NEW, SEQ, Start

if TYPE_CHECKING:
    from malamute.core.session.session import Session
    from malamute.core.stream.gaps import Missing
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams
    from malamute.matching import Selector


def subscribe(
    streams: Streams, session: Session, message: Subscribe, selector: Selector, asked: Selector
) -> Subscription:
    """Begin a subscription to the allowed part of the requested messages.

    Raises:
        InvalidSelector, InvalidValue, TooMany: the subscription is not possible.
    """
    start, resumed = Start.parse(message.start), _position_of(message)
    is_new = start.kind == NEW and resumed is None and not message.cursor
    user = session.may.principal.user
    if message.cursor and resumed is None:
        streams.check_cursor(message.stream, message.cursor, session.may)
    stream = streams.get(message.stream, user)
    # Earlier messages of this iteration are not new to it.
    stream.flush()
    start, message, is_foreign = _resolve(streams, stream, start, resumed, message)
    committed = stream.journaled and (message.committed or stream.committed)
    subscription = Subscription(
        session, message.source, stream, selector, asked, message.had, committed=committed
    )
    session.sources[message.source] = subscription
    subscription.credit.grant(message.credit, message.credit_bytes)

    def look(position: Position) -> None:
        stream.gaps.taken_back(message.had, lambda taken_back: begin(position, taken_back))

    def begin(position: Position, taken_back: Sequence[Missing]) -> None:
        if subscription.open:
            if message.cursor and message.cursor not in stream.cursors:
                try:
                    # Others may have come meanwhile.
                    stream.cursors.check(message.cursor, user)
                except (TooMany, QuotaExceeded) as error:
                    subscription.fail(error)
                    return
                stream.cursors.commit(message.cursor, position.first - 1, user)
            # A reader of new messages knows that it begins at the head.
            subscription.accept(position, announced=not is_new)
            if is_foreign:
                subscription.missed(1, position.first - 1, ANOTHER_STORE)
            for missing in taken_back:
                subscription.missed(*missing)
            subscription.begin(position)

    with streams.effects.failing(subscription.fail):
        locate(stream, start, subscription.group, look)
    return subscription


def _resolve(
    streams: Streams, stream: Stream, start: Start, resumed: StorePosition | None, message: Subscribe
) -> tuple[Start, Subscribe, bool]:
    """Find where a subscription begins in this store, and whether its position was one in another store.

    Raises `CursorLost`.
    """
    if resumed is not None and _is_here(streams, resumed, stream):
        message = message._replace(cursor="")
        return _anew(streams, stream, Start(SEQ, resumed.sequence + 1), message), message, False
    if is_foreign := resumed is not None:
        message = message._replace(had=0)
    stream.cursors.check_known(message.cursor)
    if (done := stream.cursors.get(message.cursor)) is not None:
        return stream.numbering.first_used(Start(SEQ, done + 1)), message, is_foreign
    if start.kind == AFTER:
        position = StorePosition(start.value, start.store)
        if not _is_here(streams, position, stream):
            return Start(FIRST), message._replace(had=0), True
        start = Start(SEQ, position.sequence + 1)
        if position.sequence:
            # A reader that has had messages of this name gets a GAP for deleted ones.
            return _anew(streams, stream, start, message), message, False
    start = _anew(streams, stream, start, message)
    return start if message.had else stream.numbering.first_used(start), message, is_foreign


def _anew(streams: Streams, stream: Stream, start: Start, message: Subscribe) -> Start:
    """Begin at the head of a stream that was made anew for its readers, if nothing was before that."""
    anew = stream.idle and not (message.had or message.cursor)
    used = max(streams.incarnation, streams.deleted.last(stream.name))
    return Start(NEW) if anew and start.kind == SEQ and start.value > used else start


def _is_here(streams: Streams, position: StorePosition, stream: Stream) -> bool:
    """Return whether a position is one in this store.

    Older incarnations of the broker have used no sequence beyond the beginning of this one. So a position
    beyond the head is of an incarnation that this store does not know.
    """
    return position.broker == streams.broker and (position.sequence < stream.progress.next or stream.idle)


def _position_of(message: Subscribe) -> StorePosition | None:
    """Return the position of a subscription that stood before; None for a new one. Raises `InvalidValue`."""
    position = StorePosition.parse(message.resume)
    if message.resume and position is None:
        raise InvalidValue(f"invalid position {message.resume!r}: expected N@STORE")
    return position
