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
    ]
    assert {row.unit for row in rows} == {"µs", "s", "MB", "KiB"}
    assert all("20" in row.parameters or row.what == "memory of the index" for row in rows)


def test_the_naive_ways_match_the_same_as_the_engine():
    patterns, subjects = match._topic_patterns(60, random.Random(1))
    index = Index()
    for pattern in patterns:
        index.add(pattern, Selector.parse([["topic", pattern]]))
    for subject in subjects[:200]:
        wanted = {p for p in patterns if match.re.fullmatch(match._expression(p), subject)}
        assert {key for group in index.match(subject) for key in group.members} == wanted
