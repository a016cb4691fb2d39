"""The benchmark runs, and says what it measured. No figure is judged here."""

import random

from malamute.bench import match
from malamute.matching import Index, Selector


def test_every_workload_gives_its_rows(monkeypatch):
    monkeypatch.setattr(match, "NEW_SUBJECTS", 20)
    chance = random.Random(1)
    rows = [
        *match.topics(20, chance, rounds=1),
        *match.fields(20, chance, rounds=1),
        *match.ranges(20, chance, rounds=1),
        *match.openamq(chance, rounds=1, count=20),
        *match.capacity(5, 4, chance),
        *match.memory(20, 50, chance),
        *match.ways(40, 20, chance, rounds=1),
        *match.values(20, 50, chance),
        *match.mixed(20, chance, rounds=1),
    ]
    assert {row.unit for row in rows} == {"µs", "s", "MB", "KiB", "rows"}
    others = ("memory of the index", "OpenAMQ's own: compile", "OpenAMQ's own: match all")
    assert all("20" in row.parameters or row.what in (*others, "goal of the whitepaper") for row in rows)
    assert [row.value for row in rows if row.what == "rows that were added"] == [0]


def test_the_bit_by_bit_matcher_matches_the_same_as_the_engine():
    patterns = [p for p in match._topic_patterns(60, random.Random(1))[0] if "#" not in p]
    subjects = match._topic_patterns(60, random.Random(1))[1][:200]
    index, bits = Index(), match.BitByBit(patterns)
    for number, pattern in enumerate(patterns):
        index.add(number, Selector.parse([["topic", pattern]]))
    found = [bits.match(subject) for subject in subjects]
    assert found == [sorted(k for g in index.match(s) for k in g.members) for s in subjects]
    assert any(found)


def test_the_naive_ways_match_the_same_as_the_engine():
    patterns, subjects = match._topic_patterns(60, random.Random(1))
    index = Index()
    for pattern in patterns:
        index.add(pattern, Selector.parse([["topic", pattern]]))
    for subject in subjects[:200]:
        wanted = {p for p in patterns if match.re.fullmatch(match._expression(p), subject)}
        assert {key for group in index.match(subject) for key in group.members} == wanted
