"""Where the messages of a queue are: by sequence, in pages of neighbours.

Messages come in runs, and mostly leave in runs. So their places are kept side by side in short lists: a run
is a slice of a few of them, and no message is searched for by itself. A page without messages leaves. A queue
whose messages are far from each other has a page for each of them, and costs no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PAGE = 64
"""Sequences of a page."""


NONE: Sequence[None] = (None,) * PAGE
"""A page without messages."""


class Block:
    """One block of the log: its stored bytes, how much of it is live, and the estimated cost."""

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

    One thread may change them while others look for blocks: what is moved is never missing meanwhile.
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
        """The messages that are in a block. Looks at all of them."""
        found = []
        for number, page in sorted(self._pages.items()):
            found += [number * PAGE + i for i, place in enumerate(page) if place and place[0] is block]
        return found

    def block_of(self, sequence: int) -> Block | None:
        """The block that has a message; None if none has it."""
        page = self._pages.get(sequence // PAGE)
        place = page[sequence % PAGE] if page else None
        return place[0] if place else None

    def blocks_of(self, sequences: Sequence[int]) -> list[Block | None]:
        """The blocks that have these messages; None where none has one."""
        first = sequences[0] if sequences else 0
        run = range(first, first + len(sequences))
        if [*run] != [*sequences]:
            return [*map(self.block_of, sequences)]
        # As most are: neighbours in their order.
        get = self._pages.get
        places: list[Place | None] = []
        for number in range(run.start // PAGE, (run.stop - 1) // PAGE + 1):
            places += get(number) or NONE
        start = first % PAGE
        return [place and place[0] for place in places[start : start + len(run)]]

    def put(self, first: int, places: Sequence[Place]) -> list[Place]:
        """Set the places of messages from `first` on. Returns those that some of them had."""
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
        """Remove the messages of a range, which may be far wider than the queue. Returns their places."""
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
        """Remove all messages. Returns their places."""
        taken = [place for page in self._pages.values() for place in page if place]
        self._pages.clear()
        self._count = 0
        return taken

    def _within(self, first: int, last: int) -> Iterable[int]:
        """The pages that are there, of a range."""
        pages = self._pages
        if last - first < len(pages):
            return [number for number in range(first, last + 1) if number in pages]
        return [number for number in pages if first <= number <= last]
