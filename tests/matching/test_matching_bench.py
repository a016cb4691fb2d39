"""The benchmark runs, and says what it measured. Times are not judged here, but memory is."""

import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from lab import match
from shared_folders import PATHS

from malamute.matching import Index, Selector

TOPICS = {
    "new subject": "µs",
    "seen subject": "µs",
    "parse all selectors": "s",
    "add all selectors": "s",
    "save all selectors": "s",
    "load all selectors": "s",
    "new subject, loaded": "µs",
    "modify": "µs",
    "unsubscribe": "µs",
    "naive, one after the other": "µs",
    "regular expression per selector": "µs",
}
WAYS = (
    "naive",
    "normalised",
    "bit by bit",
    "constituent tables",
    "filter",
    "shapes, new subject",
    "seen subject",
)
WORKLOADS = {
    "topics": (lambda chance: match.topics(20, chance, 1), TOPICS),
    "fields": (lambda chance: match.fields(20, chance, 1), {"fields": "µs"}),
    "ranges": (
        lambda chance: match.ranges(20, chance, 1),
        dict.fromkeys(("price between a and b", "symbol = 'S' and price > a", "price > a"), "µs"),
    ),
    "openamq": (
        lambda chance: match.openamq(chance, 1, 20),
        {
            "OpenAMQ: compile": "s",
            "OpenAMQ: match all, visit each": "s",
            "OpenAMQ: match a message": "µs",
            "OpenAMQ's own: compile": "s",
            "OpenAMQ's own: match all": "s",
            "goal of the whitepaper": "µs",
        },
    ),
    "capacity": (lambda chance: match.capacity(5, 4, chance), {"memory of the index": "MB"}),
    "memory": (lambda chance: match.memory(20, 50, chance), {"growth of resident memory": "KiB"}),
    "ways": (lambda chance: match.ways(40, 20, chance, 1), {f"ways: {way}": "µs" for way in WAYS}),
    "values": (
        lambda chance: match.values(20, 50, chance),
        {"rows that were added": "rows", "growth of resident memory": "KiB"},
    ),
    "mixed": (
        lambda chance: match.mixed(20, chance, 1),
        {"parse and add all selectors": "s", "memory of the index": "MB", "mixed families": "µs"},
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_gives_its_rows(name, monkeypatch):
    monkeypatch.setattr(match, "NEW_SUBJECTS", 20)
    make, wanted = WORKLOADS[name]
    rows = [*make(random.Random(1))]
    assert {row.what: row.unit for row in rows} == wanted
    assert len(rows) == len(wanted)
    assert all(row.value > 0 for row in rows if row.unit in ("µs", "s"))
    assert {row.value for row in rows if row.unit == "rows"} <= {0}


def test_every_workload_is_run(monkeypatch):
    ran = []
    for name in WORKLOADS:
        monkeypatch.setattr(match, name, lambda *_, name=name: ran.append(name) or [])
    match.run(sizes=[10, 20], rounds=1)
    assert Counter(ran) == dict.fromkeys(WORKLOADS, 1) | {"topics": 2}


def test_wp54_wp56_openamqs_test_matches_as_many_as_theirs_beside_their_figures_and_the_goal():
    rows = {row.what: row for row in match.openamq(random.Random(1), 1, 2_000)}
    # 2,000 topics and subscriptions of five levels, of which 170 match a message, as there.
    topics, subscriptions, messages, matches = map(
        lambda found: int(found.replace(",", "")),
        re.findall(r"[\d,]*\d", re.sub(r"\(.*?\)", "", rows["OpenAMQ: match all, visit each"].parameters)),
    )
    assert (topics, subscriptions, messages) == (2_000, 2_000, 2_000)
    assert 150 <= matches / messages <= 190
    theirs = [rows[f"OpenAMQ's own: {what}"].value for what in ("compile", "match all")]
    assert (*theirs, rows["goal of the whitepaper"].value) == (12.0, 26.0, 2.0)


def test_wk2_wk6_neither_seen_subjects_nor_values_that_nobody_names_fill_the_memory():
    """With 5,000 selectors: 200,000 subjects of even ten bytes each would be seen."""
    program = """
import random
from lab import match
for row in (*match.memory(5_000, 200_000, random.Random(1)), *match.values(5_000, 200_000, random.Random(1))):
    print(row.value)
"""
    subjects, rows, values = map(float, _printed(program).split())
    assert rows == 0
    assert subjects < 2_000
    assert values < 2_000


def test_rq13_5_000_selectors_of_100_000_criteria_fit_into_62_megabytes():
    """As much as RFC 003 counts for bitmaps that are not compressed, 100,000 bits for each selector."""
    program = """
import random
from lab import match
for row in match.capacity(5_000, 20, random.Random(1)):
    print(row.value)
"""
    assert 5 < float(_printed(program)) < 62.5


def _printed(program):
    """The output of a program in a process of its own, whose memory nothing else has grown."""
    # A test of Spark in the same process may have changed the path.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


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
    wanted = [{p for p in patterns if match.re.fullmatch(match._expression(p), s)} for s in subjects[:200]]
    assert any(wanted)
    found = [{key for group in index.match(s) for key in group.members} for s in subjects[:200]]
    assert found == wanted
