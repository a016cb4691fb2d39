"""The blocks of a queue's messages, by sequence, in pages of neighbors.

Messages are added in runs, and mostly deleted in runs. So neighbors have their places side by side in short
lists, the pages: a run is a slice of a few pages, and costs no search for each message. An empty page is
removed. A queue of scattered messages has at most one page for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PAGE = 64
"""Sequences of a page."""

NONE: Sequence[None] = (None,) * PAGE
"""A page without messages."""


class Block:
    """One block of the log: its stored bytes, its live entries, and its estimated cost."""

    __slots__ = ("live", "number", "size", "weight")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.live = 0
        self.weight = 0


Place = tuple[Block, int]
"""The block that an entry is live in, and its bytes or weight."""


class BlockMap:
    """The places of messages by their sequences.

    One thread may change places while others look for blocks: a moved message is never missing meanwhile.
    """

    __slots__ = ("_count", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[Place | None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: int) -> bool:
        return self.block_of(sequence) is not None

    def in_block(self, block: Block) -> list[int]:
        """Return the messages in a block. Costs the number of messages of the queue."""
        found = []
        for number, page in sorted(self._pages.items()):
            found += [number * PAGE + i for i, place in enumerate(page) if place and place[0] is block]
        return found

    def block_of(self, sequence: int) -> Block | None:
        """Return the block of a message; None without the message."""
        page = self._pages.get(sequence // PAGE)
        place = page[sequence % PAGE] if page else None
        return place[0] if place else None

    def blocks_of(self, sequences: Sequence[int]) -> list[Block | None]:
        """Return the block of each of these messages; None in place of a missing one."""
        first = sequences[0] if sequences else 0
        run = range(first, first + len(sequences))
        if [*run] != [*sequences]:
            return [*map(self.block_of, sequences)]
        # The usual case: neighbors in their order.
        get = self._pages.get
        places: list[Place | None] = []
        for number in range(run.start // PAGE, (run.stop - 1) // PAGE + 1):
            places += get(number) or NONE
        start = first % PAGE
        return [place and place[0] for place in places[start : start + len(run)]]

    def put(self, first: int, places: Sequence[Place]) -> list[Place]:
        """Set the places of the messages from `first` on; return the places that some of them had before."""
        pages = self._pages
        before: list[Place | None] = []
        done = 0
        while done < len(places):
            number, start = divmod(first + done, PAGE)
            part = places[done : done + PAGE - start]
            stop = start + len(part)
            page = pages.get(number)
            if page is None:
                page = pages[number] = [None] * PAGE
            else:
                before += page[start:stop]
            page[start:stop] = part
            done += len(part)
        found = [*filter(None, before)]
        self._count += len(places) - len(found)
        return found

    def pop(self, first: int, last: int) -> list[Place]:
        """Remove the messages of a range, which may be far wider than the queue; return their places."""
        pages = self._pages
        taken: list[Place | None] = []
        for number in self._within(first // PAGE, last // PAGE):
            page = pages[number]
            start, stop = max(first - number * PAGE, 0), min(last + 1 - number * PAGE, PAGE)
            taken += page[start:stop]
            page[start:stop] = [None] * (stop - start)
            if not any(page):
                del pages[number]
        found = [*filter(None, taken)]
        self._count -= len(found)
        return found

    def pop_all(self) -> list[Place]:
        """Remove all messages; return their places."""
        taken = [place for page in self._pages.values() for place in page if place]
        self._pages.clear()
        self._count = 0
        return taken

    def _within(self, first: int, last: int) -> Iterable[int]:
        """Return the existing pages of a range."""
        pages = self._pages
        if last - first < len(pages):
            return [number for number in range(first, last + 1) if number in pages]
        return [number for number in pages if first <= number <= last]
