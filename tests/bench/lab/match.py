"""The figures of the matching engine: `make bench ARGS="match"`.

`run()` measures and returns rows; nothing here decides whether a figure is good. Times are processor time of
the thread, and each row is the median of several rounds, since the machine may have other work to do.
Workloads come from a fixed seed, so two runs measure the same.

    topics       three-part topics, six shapes. Ten patterns are met by the subjects; all others, up
                 to the number of selectors, have the same shapes and meet none of them. So the number
                 of matches is the same at each size, and what differs is only the size of the index.
    fields       two fields each, of 20 names with 100 values; a message has 5 of these fields
    ranges       `price between a and a + 1`, uniform over as many units as there are selectors
    thresholds   `price > a`, with a message at the 99th percentile from below: 1 % match
    OpenAMQ      2,000 topics of five levels against 2,000 subscriptions, a million messages
    memory       of an index of 100,000 criteria, and of a million distinct subjects
    ways         10,000 requests of which 100 are distinct, matched in each way that the papers name: one
                 after the other, only the distinct ones, bit by bit, in the tables, and as a filter
    values       a million values that no pattern names, in the constituent tables
    mixed        50,000 selectors of all families

The naive figures try one selector after the other: with the engine's own `matches`, and with Python's
`re` on a translated pattern. They are measured on fewer messages, since they take so much longer.
"""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

from malamute.bench.figures import us_each
from malamute.matching import FAMILIES, Bitmap, ConstituentTables, Filter, Index, Selector
from malamute.matching.constituents import PositionRows
from malamute.matching.pattern import forms

SIZES = (10, 100, 1_000, 10_000, 100_000)
ROUNDS = 5
NEW_SUBJECTS = 4_000
NAIVE_MAX = 10_000
CHANGES = 1_000
"""Subscriptions that are changed, and then removed, at each size."""

CURVE = Path("docs/matching-curve.png")

LEVELS = (
    ("gold", "oil", "pork", "chips", "bonds", "debt"),
    ("lon", "ny", "hk", "jo", "tk", "sg", "mo"),
    ("usd", "eur", "gbp", "jpy", "chy", "aud"),
    ("buy", "sell", "hold", "short", "long"),
    ("spot", "early", "late", "open", "close", "future"),
)
"""The five levels of OpenAMQ's test."""

WILDCARD_CHANCE = 0.535
"""Makes about 170 of 2,000 subscriptions match: (0.535 + 0.465 / 6) ** 5 = 0.085."""


class MatchRow(NamedTuple):
    """One figure: what was measured, with which parameters, and how much in which unit."""

    what: str
    parameters: str
    value: float
    unit: str


def run(sizes: Sequence[int] = SIZES, seed: int = 1, rounds: int = ROUNDS) -> list[MatchRow]:
    """All figures, those of memory first."""
    chance = random.Random(seed)
    with _quiet_collector():
        # Memory first: later, what other workloads have freed would be used again and hide the growth.
        rows = [*memory(5_000, 1_000_000, chance), *capacity(5_000, 20, chance)]
        rows += mixed(50_000, random.Random(seed), rounds)
        rows += [row for size in sizes for row in topics(size, chance, rounds)]
        rows += fields(10_000, chance, rounds)
        rows += ranges(10_000, chance, rounds)
        rows += openamq(chance, rounds)
        rows += ways(10_000, 100, chance, rounds)
        rows += values(5_000, 1_000_000, chance)
    return rows


@contextmanager
def _quiet_collector() -> Iterator[None]:
    # As the broker does: what is there at the start is no garbage.
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _seconds(work: Callable[[], Any]) -> float:
    start = thread_time()
    work()
    return thread_time() - start


def _index(selectors: Sequence[Selector], cache_size: int = 10_000) -> Index:
    index = Index(cache_size)
    for key, selector in enumerate(selectors):
        index.add(key, selector)
    return index


def _topic_patterns(size: int, chance: random.Random) -> tuple[list[str], list[str]]:
    """The patterns, and the subjects, which only the first ten of them want."""
    shapes = ("{}.{}.{}", "{}.{}.*", "{}.*.{}", "*.{}.{}", "{}.#", "{}.{}.#")
    wanted = [shapes[n % 6].format(f"a{n}", f"b{n}", f"c{n}") for n in range(10)]
    patterns = dict.fromkeys(wanted)
    width = max(10, round(size**0.6))
    while len(patterns) < size:
        parts = [f"{level}{chance.randrange(width)}x" for level in "abc"]
        patterns[chance.choice(shapes).format(*parts)] = None
    subjects = [f"a{n % 10}.b{n % 10}.c{chance.randrange(10**9)}" for n in range(NEW_SUBJECTS // 2)]
    subjects += [f"a{chance.randrange(10**9)}.b{n}.c{n % 10}" for n in range(NEW_SUBJECTS // 2)]
    chance.shuffle(subjects)
    return list(patterns), subjects


def topics(size: int, chance: random.Random, rounds: int) -> Iterator[MatchRow]:
    """A new subject, a seen one, and the cost of adding."""
    patterns, subjects = _topic_patterns(size, chance)
    parsing, adding, new, seen = [], [], [], []
    for _ in range(rounds):
        gc.collect()
        start = thread_time()
        selectors = [Selector.parse([("topic", pattern)]) for pattern in patterns]
        parsing.append(thread_time() - start)
        start = thread_time()
        index = _index(selectors)
        adding.append(thread_time() - start)
        index.match("warm.up.first")
        new.append(_seconds(lambda index=index: index.match_many(subjects)))  # type: ignore[misc]
        seen.append(_seconds(lambda index=index: index.match_many(subjects)))  # type: ignore[misc]
    matches = sum(map(len, index.match_many(subjects))) / len(subjects)
    parameters = f"{size} topic selectors, {matches:.1f} matches"
    yield MatchRow("new subject", parameters, us_each(median(new), len(subjects)), "µs")
    yield MatchRow("seen subject", parameters, us_each(median(seen), len(subjects)), "µs")
    yield MatchRow("parse all selectors", parameters, median(parsing), "s")
    yield MatchRow("add all selectors", parameters, median(adding), "s")
    yield from _saved(index, subjects, parameters, rounds)
    yield from _changes(index, parameters)
    if size <= NAIVE_MAX:
        yield from _naive(patterns, subjects, parameters)


def _changes(index: Index, parameters: str) -> Iterator[MatchRow]:
    """What it costs to change or to remove one subscription of many."""
    keys = range(0, len(index), max(1, len(index) // CHANGES))
    others = [Selector.parse([("topic", f"changed.{key}.*")]) for key in keys]
    took = _seconds(lambda: [index.modify(key, other) for key, other in zip(keys, others, strict=True)])
    yield MatchRow("modify", parameters, us_each(took, len(keys)), "µs")
    took = _seconds(lambda: [*map(index.remove, keys)])
    yield MatchRow("unsubscribe", parameters, us_each(took, len(keys)), "µs")


def _saved(index: Index, subjects: list[str], parameters: str, rounds: int) -> Iterator[MatchRow]:
    saving, loading, new = [], [], []
    for _ in range(rounds):
        gc.collect()
        start = thread_time()
        data = index.save()
        saving.append(thread_time() - start)
        start = thread_time()
        loaded = Index.load(data)
        loading.append(thread_time() - start)
        new.append(_seconds(lambda loaded=loaded: loaded.match_many(subjects)))  # type: ignore[misc]
    yield MatchRow("save all selectors", f"{parameters}, {len(data):,} bytes", median(saving), "s")
    yield MatchRow("load all selectors", parameters, median(loading), "s")
    yield MatchRow("new subject, loaded", parameters, us_each(median(new), len(subjects)), "µs")


def _naive(patterns: list[str], subjects: list[str], parameters: str) -> Iterator[MatchRow]:
    some = subjects[: max(2, 20_000 // len(patterns))]
    matches = FAMILIES["topic"].matches
    took = _seconds(lambda: [[matches(p, s, {}, "") for p in patterns] for s in some])
    yield MatchRow("naive, one after the other", parameters, us_each(took, len(some)), "µs")
    compiled = [re.compile(_expression(pattern)) for pattern in patterns]
    took = _seconds(lambda: [[e.fullmatch(s) for e in compiled] for s in some])
    yield MatchRow("regular expression per selector", parameters, us_each(took, len(some)), "µs")


def _expression(pattern: str) -> str:
    parts = {"*": r"[^.]+", "#": r"[^.]+(?:\.[^.]+)*"}
    head, _, final = pattern.rpartition(".")
    body = r"\.".join(parts.get(part, re.escape(part)) for part in head.split("."))
    return f"{body}(?:\\.{parts[final]})?" if final in parts else f"{body}\\.{re.escape(final)}"


def _message_row(
    what: str, index: Index, messages: list[dict[str, Any]], about: str, rounds: int
) -> MatchRow:
    subjects = ["s"] * len(messages)
    gc.collect()
    index.match("s", messages[0])
    times = [_seconds(lambda: index.match_many(subjects, messages)) for _ in range(rounds)]
    matches = sum(map(len, index.match_many(subjects, messages))) / len(messages)
    return MatchRow(what, f"{about}, {matches:.1f} matches", us_each(median(times), len(messages)), "µs")


def fields(size: int, chance: random.Random, rounds: int) -> Iterator[MatchRow]:
    """Messages of five fields against selectors of two."""
    names = [f"field{n}" for n in range(20)]

    def some(count: int) -> dict[str, str]:
        return {name: f"value{chance.randrange(100)}" for name in chance.sample(names, count)}

    selectors = {Selector.parse([("fields", {"all": some(2)})]): None for _ in range(size)}
    messages = [some(5) for _ in range(NEW_SUBJECTS)]
    about = f"{len(selectors)} selectors of 2 fields, messages of 5"
    yield _message_row("fields", _index(list(selectors)), messages, about, rounds)


def ranges(size: int, chance: random.Random, rounds: int) -> Iterator[MatchRow]:
    """Messages with a price against selectors with ranges of prices."""
    prices = [{"price": chance.uniform(0, size)} for _ in range(NEW_SUBJECTS)]
    between = [
        f"price between {low!r} and {low + 1!r}" for low in (chance.uniform(0, size) for _ in range(size))
    ]
    selectors = [Selector.parse([("all", "")], where) for where in between]
    yield _message_row("price between a and b", _index(selectors), prices, f"{size} selectors", rounds)
    named = [f"symbol = 'S{n % 100}' and price > {chance.uniform(0, size)!r}" for n in range(size)]
    selectors = [Selector.parse([("all", "")], where) for where in named]
    quotes = [{"symbol": f"S{n % 100}", "price": size / 100} for n in range(NEW_SUBJECTS)]
    yield _message_row("symbol = 'S' and price > a", _index(selectors), quotes, f"{size} selectors", rounds)
    above = [f"price > {chance.uniform(0, size)!r}" for _ in range(size)]
    selectors = [Selector.parse([("all", "")], where) for where in above]
    low = [{"price": size / 100} for _ in range(NEW_SUBJECTS // 10)]
    yield _message_row("price > a", _index(selectors), low, f"{size} selectors", rounds)


def openamq(chance: random.Random, rounds: int, count: int = 1_000_000) -> Iterator[MatchRow]:
    """OpenAMQ's own test (whitepaper): compile 2,000 topics and subscriptions, match a million messages.

    A level of a subscription is `*` with a chance that makes a message match 170 of them. As there,
    subscriptions may repeat, and a match is counted for each subscriber.
    """
    subjects = [".".join(map(chance.choice, LEVELS)) for _ in range(2_000)]
    patterns = [
        ".".join("*" if chance.random() < WILDCARD_CHANCE else chance.choice(level) for level in LEVELS)
        for _ in range(2_000)
    ]
    selectors = [Selector.parse([("topic-amqp", pattern)]) for pattern in patterns]
    messages = [chance.choice(subjects) for _ in range(count)]
    compiling, matching = [], []
    for _ in range(rounds):
        start = thread_time()
        index = _index(selectors)
        index.match_many(subjects)
        compiling.append(thread_time() - start)
        start = thread_time()
        matches = _count_members(index, messages)
        matching.append(thread_time() - start)
    parameters = f"2,000 topics, 2,000 subscriptions ({len(index)} distinct), {count:,} messages"
    yield MatchRow("OpenAMQ: compile", parameters, median(compiling), "s")
    yield MatchRow(
        "OpenAMQ: match all, visit each",
        f"{parameters}, {matches:,} matches",
        median(matching),
        "s",
    )
    yield MatchRow("OpenAMQ: match a message", parameters, us_each(median(matching), count), "µs")
    yield from _goals()


def _goals() -> Iterator[MatchRow]:
    """What the whitepaper says of OpenAMQ in C, on a processor of 2 GHz, and what it hopes for."""
    theirs = "2,000 topics, 2,000 subscriptions, 1,000,000 messages, in C on 2 GHz"
    yield MatchRow("OpenAMQ's own: compile", theirs, 12.0, "s")
    yield MatchRow("OpenAMQ's own: match all", f"{theirs}, 170 M matches", 26.0, "s")
    yield MatchRow("goal of the whitepaper", "a message, 500,000 messages a second", 2.0, "µs")


def _count_members(index: Index, messages: list[str]) -> int:
    matches = 0
    for groups in index.match_many(messages):
        for group in groups:
            for _ in group.members:
                matches += 1
    return matches


class BitByBit:
    """The tables of the papers with a byte for each bit, which are combined one after the other."""

    def __init__(self, patterns: Sequence[str]) -> None:
        tables = ConstituentTables()
        for number, pattern in enumerate(patterns):
            tables.add(number, forms("topic", pattern))
        self._size = len(patterns)
        self._tables = tables.printed()
        self._rows = {id(row): self._bits(row) for table in self._tables for row in _rows_of(table)}
        self._open = self._bits(tables.open)

    def _bits(self, row: Bitmap) -> bytearray:
        bits = bytearray(self._size)
        for number in row:
            bits[number] = 1
        return bits

    def match(self, subject: str) -> list[int]:
        """The numbers of the patterns without a `#` that match, and perhaps others with one."""
        parts = subject.split(".")
        rows = [self._rows[id(t.literals.get(p, t.other))] for t, p in zip(self._tables, parts, strict=False)]
        if len(parts) > len(self._tables):
            rows.append(self._open)
        elif len(parts) < len(self._tables):
            rows.append(self._rows[id(self._tables[len(parts)].null)])
        return [number for number in range(self._size) if all(row[number] for row in rows)]


def _rows_of(table: PositionRows) -> list[Bitmap]:
    return [*table.literals.values(), table.null, table.other]


def ways(requests: int, distinct: int, chance: random.Random, rounds: int) -> Iterator[MatchRow]:
    """Each way to match, on the same requests; each is given distinct ones but for the first."""
    patterns, subjects = _topic_patterns(distinct, chance)
    asked = [patterns[number % distinct] for number in range(requests)]
    matches, some = FAMILIES["topic"].matches, subjects[:20]
    tables, bits, filtered = ConstituentTables(), BitByBit(patterns), Filter(patterns)
    for number, pattern in enumerate(patterns):
        tables.add(number, forms("topic", pattern))
    index = _index([Selector.parse([("topic", pattern)]) for pattern in asked])
    filtered.matches("compiled.at.first")
    parts = [subject.split(".") for subject in subjects]
    measured: Sequence[tuple[str, Callable[[], Any], int]] = (
        ("naive", lambda: [[matches(p, s, {}, "") for p in asked] for s in some], len(some)),
        ("normalised", lambda: [[matches(p, s, {}, "") for p in patterns] for s in subjects[:400]], 400),
        ("bit by bit", lambda: [bits.match(s) for s in subjects[:400]], 400),
        ("constituent tables", lambda: [tables.match(p) for p in parts], len(parts)),
        ("filter", lambda: [filtered.matches(s) for s in subjects], len(subjects)),
        ("shapes, new subject", lambda: _forgotten(index).match_many(subjects), len(subjects)),
        ("seen subject", lambda: index.match_many(subjects), len(subjects)),
    )
    for what, work, count in measured:
        took = median(_seconds(work) for _ in range(rounds))
        about = f"{requests} requests, {distinct} distinct"
        yield MatchRow(f"ways: {what}", about, us_each(took, count), "µs")


def _forgotten(index: Index) -> Index:
    index.forget()
    return index


def values(selectors: int, subjects: int, chance: random.Random) -> Iterator[MatchRow]:
    """What values that no pattern names add to the constituent tables: rows, and memory."""
    patterns, _ = _topic_patterns(selectors, chance)
    tables = ConstituentTables()
    for number, pattern in enumerate(patterns):
        tables.add(number, forms("topic", pattern))
    before, grown = _rows_in(tables), _resident()
    for number in range(subjects):
        tables.match((f"v{number}", f"b{number % 7}", "c"))
    parameters = f"{selectors} selectors, {subjects} values that none of them names"
    yield MatchRow("rows that were added", parameters, _rows_in(tables) - before, "rows")
    yield MatchRow("growth of resident memory", parameters, (_resident() - grown) / 1024, "KiB")


def _rows_in(tables: ConstituentTables) -> int:
    return sum(len(_rows_of(table)) for table in tables.printed())


def mixed(size: int, chance: random.Random, rounds: int) -> Iterator[MatchRow]:
    """Selectors of all families and with conditions, as many different people would have them."""
    before = _resident()
    start = thread_time()
    index = _index([_any_selector(number, chance, size) for number in range(size)])
    adding = thread_time() - start
    about = f"{len(index)} distinct of {size} selectors of mixed families"
    yield MatchRow("parse and add all selectors", about, adding, "s")
    yield MatchRow("memory of the index", about, (_resident() - before) / 1e6, "MB")
    subjects = [f"a{chance.randrange(size)}.b{chance.randrange(100)}.c{n % 10}" for n in range(NEW_SUBJECTS)]
    headers = [{"unit": f"u{n % 100}", "price": chance.uniform(0, size)} for n in range(NEW_SUBJECTS)]
    index.match(subjects[0], headers[0])
    times = [_seconds(lambda: _forgotten(index).match_many(subjects, headers)) for _ in range(rounds)]
    matches = sum(map(len, index.match_many(subjects, headers))) / len(subjects)
    yield MatchRow(
        "mixed families", f"{about}, {matches:.1f} matches", us_each(median(times), len(subjects)), "µs"
    )


def _any_selector(number: int, chance: random.Random, size: int) -> Selector:
    word = chance.randrange(size)
    criterion, where = (
        (("topic", f"a{word}.*.c{number % 10}"), ""),
        (("topic", f"a{word}.#"), ""),
        (("topic-amqp", f"*.b{word % 100}.x{number}"), ""),
        (("exact", f"a{word}.b{number % 100}.c1"), ""),
        (("prefix", f"a{word}."), ""),
        (("fields", {"all": {"unit": f"u{word % 100}", "level": number}}), ""),
        (("topic", f"a{word}.b1.*"), f"price > {word}"),
        (("all", ""), f"unit = 'u{word % 100}' and price between {word} and {word + 1}"),
    )[number % 8]
    return Selector.parse([criterion], where)


def capacity(selectors: int, criteria: int, chance: random.Random) -> Iterator[MatchRow]:
    """How much memory an index of many criteria needs (RFC 003: 62.5 MB, uncompressed)."""
    patterns, _ = _topic_patterns(selectors * criteria, chance)
    parsed = [
        Selector.parse([("topic", pattern) for pattern in patterns[n::selectors]]) for n in range(selectors)
    ]
    before = _resident()
    index = _index(parsed)
    grown = (_resident() - before) / 1e6
    yield MatchRow("memory of the index", f"{len(index)} selectors, {len(patterns)} criteria", grown, "MB")


def memory(selectors: int, subjects: int, chance: random.Random) -> Iterator[MatchRow]:
    """How much distinct subjects grow the process beyond what the cache holds."""
    patterns, _ = _topic_patterns(selectors, chance)
    index = _index([Selector.parse([("topic", pattern)]) for pattern in patterns])
    for number in range(20_000):
        index.match(f"a{number % 10}.b{number}.c{number % 7}")
    full = _resident()
    for number in range(subjects):
        index.match(f"a{number % 10}.b{number}.c{number % 11}")
    parameters = f"{selectors} selectors, {subjects} distinct subjects, a cache of 10,000 already full"
    yield MatchRow("growth of resident memory", parameters, (_resident() - full) / 1024, "KiB")


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


def plot(rows: Sequence[MatchRow], path: Path) -> bool:
    """Draw cost against selectors, for the engine and the naive ways; False without matplotlib."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot()
    for what in (
        "regular expression per selector",
        "naive, one after the other",
        "new subject",
        "seen subject",
    ):
        points = [(int(row.parameters.split()[0]), row.value) for row in rows if row.what == what]
        axes.loglog(*zip(*points, strict=True), marker="o", label=what)
    axes.set(xlabel="distinct selectors", ylabel="µs a message", title="Matching a message")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return True
