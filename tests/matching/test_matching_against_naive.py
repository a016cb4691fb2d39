"""RQ6, ZN18, ZN22: the engine's results equal brute force, also after changes; over 10^5 pairs."""

import random
import re

import matching_oracle as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matching_examples import many_pairs

from malamute.matching import CompiledSelector, Index, Selector, parse
from malamute.matching.fields import Fields, Geo

MANY_PAIRS = many_pairs()


def matched(index, *message):
    return sorted(key for group in index.match(*message) for key in group.members)


# Generators. A few words, so that selectors and messages meet.

WORDS = st.sampled_from(["a", "b", "c", "dd", "é"])
PATTERN_PARTS = st.one_of(WORDS, st.sampled_from(["*", "#", "*"]))
TOPICS = st.lists(PATTERN_PARTS, min_size=1, max_size=6).map(".".join)
SUBJECTS = st.lists(WORDS, min_size=1, max_size=6).map(".".join)
NAMES = st.sampled_from(["p", "q", "flag", "lat", "lon"])
ORDERED = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([-0.5, 0.0, 1.0, 2.5, 1e300, -(2**63), 2**64]),
    st.sampled_from(["", "a", "ab", "b", "1", "it's"]),
)
VALUES = st.one_of(ORDERED, st.booleans())
HEADER_VALUES = st.one_of(VALUES, st.none(), st.just(float("nan")), st.integers(-200, 200))
HEADERS = st.dictionaries(NAMES, HEADER_VALUES, max_size=5)
LATITUDES = st.one_of(st.integers(-90, 90), st.sampled_from([-90, 90, 89.5]))
LONGITUDES = st.one_of(st.integers(-190, 190), st.sampled_from([-180, 180, 179.5]))


def circles():
    return st.tuples(LATITUDES, LONGITUDES, st.sampled_from([0.5, 100, 2000, 9000, 30000]))


def boxes():
    return st.tuples(LATITUDES, LONGITUDES, LATITUDES, LONGITUDES).map(
        lambda b: (min(b[0], b[2]), b[1], max(b[0], b[2]), b[3])
    )


def plain_predicates(name):
    return st.one_of(
        st.tuples(st.sampled_from(["=", "!="]), name, VALUES),
        st.tuples(st.sampled_from(list(oracle.ORDER)), name, ORDERED),
        st.tuples(st.just("in"), name, st.lists(VALUES, min_size=1, max_size=4)),
        st.builds(lambda n, a, b: ("between", n, a, b), name, st.integers(-3, 1), st.integers(-1, 3)),
        st.tuples(st.just("exists"), name),
        st.tuples(st.just("prefix"), name, st.sampled_from(["", "a", "ab", "it"])),
        st.tuples(st.just("matches"), name, st.sampled_from(["^a", "b$", "."])),
    )


def predicates(name):
    areas = st.one_of(circles(), boxes())
    return st.one_of(plain_predicates(name), areas.map(lambda area: ("within", "lat", "lon", *area)))


ATTRIBUTES = st.one_of(NAMES, st.sampled_from(["subject", "sender"]))
EXPRESSIONS = st.recursive(
    predicates(ATTRIBUTES),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.builds(
            lambda kind, items: (kind, *items),
            st.sampled_from(["and", "and", "or"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
    ),
    max_leaves=6,
)
MESSAGES = st.tuples(SUBJECTS, HEADERS, st.sampled_from(["", "ann", "bob"]))


# One family at a time.


@pytest.mark.parametrize(("family", "naive"), [("topic", oracle.topic), ("topic-amqp", oracle.topic_amqp)])
@MANY_PAIRS
@given(
    patterns=st.lists(TOPICS, min_size=40, max_size=60), subjects=st.lists(SUBJECTS, min_size=40, max_size=60)
)
def test_topics(family, naive, patterns, subjects):
    index = Index()
    for key, pattern in enumerate(patterns):
        index.add(key, Selector.parse([[family, pattern]]))
    for subject in subjects:
        assert matched(index, subject) == [k for k, p in enumerate(patterns) if naive(p, subject)]


TEXT = st.text("ab.", max_size=4)


@pytest.mark.parametrize(
    ("family", "naive"),
    [("exact", lambda p, s: p == s), ("prefix", lambda p, s: s.startswith(p)), ("all", lambda p, s: True)],
)
@MANY_PAIRS
@given(patterns=st.lists(TEXT, min_size=40, max_size=50), subjects=st.lists(TEXT, min_size=40, max_size=50))
def test_plain_subject_families(family, naive, patterns, subjects):
    index = Index()
    patterns = [""] if family == "all" else patterns
    for key, pattern in enumerate(patterns):
        index.add(key, Selector.parse([[family, pattern]]))
    for subject in subjects:
        assert matched(index, subject) == [k for k, p in enumerate(patterns) if naive(p, subject)]


@many_pairs(10)
@given(subjects=st.lists(TEXT, min_size=30, max_size=50))
def test_regular_expressions(subjects):
    patterns = ["a", "^a", "b$", "^$", "a.b", r"a\.b", "(a|b)+", "[^a]", "^(ab)*$", "b{2,3}"]
    index = Index()
    for key, pattern in enumerate(patterns):
        index.add(key, Selector.parse([["regex", pattern]]))
    for subject in subjects:
        assert matched(index, subject) == [k for k, p in enumerate(patterns) if re.search(p, subject)]


FIELD_REQUESTS = st.tuples(
    st.sampled_from(["all", "any"]),
    st.dictionaries(NAMES, st.lists(VALUES, max_size=3), min_size=1, max_size=4),
)


@MANY_PAIRS
@given(
    requests=st.lists(FIELD_REQUESTS, min_size=40, max_size=50),
    messages=st.lists(HEADERS, min_size=40, max_size=50),
)
def test_fields(requests, messages):
    index = Index()
    for key, (mode, request) in enumerate(requests):
        index.add(key, Selector.parse([["fields", {mode: request}]]))
    for headers in messages:
        wanted = [k for k, (mode, r) in enumerate(requests) if oracle.fields((mode, r.items()), headers)]
        assert matched(index, "", headers) == wanted


@MANY_PAIRS
@given(request=FIELD_REQUESTS, messages=st.lists(HEADERS, min_size=20, max_size=20))
def test_e12_the_and_form_and_the_hit_count_say_the_same(request, messages):
    mode, fields = request
    pattern = Fields.normalise({mode: fields})
    for headers in messages:
        hits = Fields.hits(pattern, headers)
        assert Fields.matches(pattern, "", headers, "") == (
            hits == len(fields) if mode == "all" else hits > 0
        )


AREAS = st.one_of(circles().map(lambda c: ("circle", c)), boxes().map(lambda b: ("box", b)))
POINTS = st.tuples(LATITUDES, LONGITUDES)


@MANY_PAIRS
@given(areas=st.lists(AREAS, min_size=40, max_size=50), points=st.lists(POINTS, min_size=40, max_size=50))
def test_geo(areas, points):
    index = Index()
    for key, (shape, numbers) in enumerate(areas):
        index.add(key, Selector.parse([["geo", {shape: list(numbers)}]]))
    for latitude, longitude in points:
        naive = [
            (oracle.in_circle if shape == "circle" else oracle.in_box)(*numbers, (latitude, longitude))
            for shape, numbers in areas
        ]
        assert matched(index, "", {"lat": latitude, "lon": longitude}) == [
            k for k, hit in enumerate(naive) if hit
        ]


# The expression.


@many_pairs(10)
@given(
    trees=st.lists(EXPRESSIONS, min_size=20, max_size=30),
    messages=st.lists(MESSAGES, min_size=30, max_size=40),
)
def test_where(trees, messages):
    index = Index()
    for key, tree in enumerate(trees):
        index.add(key, Selector.parse([["all", ""]], where=oracle.text(tree)))
    for subject, headers, sender in messages:
        wanted = [k for k, tree in enumerate(trees) if oracle.holds(tree, subject, headers, sender)]
        assert matched(index, subject, headers, sender) == wanted


FEW = st.sampled_from(["p", "q", "subject"])
"""So few attributes that messages have classes."""


@many_pairs(10)
@given(
    trees=st.lists(
        st.recursive(
            plain_predicates(FEW),
            lambda inner: (
                st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.just("not"), inner)
            ),
            max_leaves=4,
        ),
        min_size=2,
        max_size=12,
    ),
    requests=st.lists(st.dictionaries(st.sampled_from("pq"), st.lists(VALUES, max_size=2), min_size=1)),
    batches=st.lists(st.lists(MESSAGES, min_size=1, max_size=20), min_size=1, max_size=4),
    gone=st.integers(0, 11),
)
def test_a_batch_matches_what_each_message_does_by_itself(trees, requests, batches, gone):
    index = Index(cache_size=30)
    selectors = dict(enumerate(trees))
    for key, tree in selectors.items():
        index.add(key, Selector.parse([["topic", "a.#"], ["topic", "#.b"]], where=oracle.text(tree)))
    for key, request in enumerate(requests):
        index.add(f"fields {key}", Selector.parse([["fields", {"any": request}]]))
    for _ in range(2):
        for messages in batches:
            found = index.match_many(*zip(*messages, strict=True))
            alone = Index()
            for group in index.groups():
                alone.add(group.number, group.selector)
            assert [[group.number for group in groups] for groups in found] == [
                sorted(key for group in alone.match(*message) for key in group.members)
                for message in messages
            ]
            naive = [
                {
                    *(
                        key
                        for key, tree in selectors.items()
                        if (oracle.topic("a.#", subject) or oracle.topic("#.b", subject))
                        and oracle.holds(tree, subject, headers, sender)
                    ),
                    *(
                        f"fields {key}"
                        for key, request in enumerate(requests)
                        if oracle.fields(("any", request.items()), headers)
                    ),
                }
                for subject, headers, sender in messages
            ]
            assert [{key for group in groups for key in group.members} for groups in found] == naive
        if gone in selectors:
            index.remove(gone)
            del selectors[gone]


@many_pairs(10)
@given(tree=EXPRESSIONS, messages=st.lists(MESSAGES, min_size=30, max_size=40))
def test_a_compiled_condition(tree, messages):
    single = CompiledSelector(Selector.parse([["all", ""]], oracle.text(tree)), refuse)
    wanted = [at for at, message in enumerate(messages) if oracle.holds(tree, *message)]
    assert places(single, messages) == wanted


def refuse(family, error):
    raise error


def places(single, messages):
    subjects, headers, senders = zip(*messages, strict=True)
    return single.places(subjects, senders, lambda wanted: [headers[at] for at in wanted])


@many_pairs(10)
@given(tree=EXPRESSIONS, message=MESSAGES)
def test_an_expression_survives_being_written_out(tree, message):
    expression = parse(oracle.text(tree))
    assert parse(str(expression)) == expression
    assert str(parse(str(expression))) == str(expression)


# The whole index, through random changes.

CRITERIA = st.one_of(
    TOPICS.map(lambda p: ["topic", p]),
    TOPICS.map(lambda p: ["topic-amqp", p]),
    SUBJECTS.map(lambda p: ["exact", p]),
    st.sampled_from(["", "a", "a.", "b.c"]).map(lambda p: ["prefix", p]),
    st.sampled_from(["^a", "b$"]).map(lambda p: ["regex", p]),
    FIELD_REQUESTS.map(lambda r: ["fields", {r[0]: r[1]}]),
    AREAS.map(lambda a: ["geo", {a[0]: list(a[1])}]),
    st.sampled_from(["ann", "carl"]).map(lambda p: ["sender", p]),
)
SELECTORS = st.tuples(
    st.lists(CRITERIA, min_size=1, max_size=3), st.one_of(st.none(), st.none(), EXPRESSIONS)
)


def wants(selector, subject, headers, sender):
    criteria, where = selector
    return (where is None or oracle.holds(where, subject, headers, sender)) and any(
        _criterion(family, pattern, subject, headers, sender) for family, pattern in criteria
    )


def _criterion(family, pattern, subject, headers, sender):
    if family == "fields":
        ((mode, request),) = pattern.items()
        return oracle.fields((mode, request.items()), headers)
    if family == "geo":
        ((_, numbers),) = pattern.items()
        return oracle.holds(["within", "lat", "lon", *numbers], subject, headers, "")
    return {
        "topic": lambda: oracle.topic(pattern, subject),
        "topic-amqp": lambda: oracle.topic_amqp(pattern, subject),
        "exact": lambda: pattern == subject,
        "sender": lambda: pattern == sender,
        "prefix": lambda: subject.startswith(pattern),
        "regex": lambda: re.search(pattern, subject) is not None,
    }[family]()


def parsed(selector):
    criteria, where = selector
    return Selector.parse(criteria, oracle.text(where) if where else "")


@many_pairs(10)
@given(selector=SELECTORS, messages=st.lists(MESSAGES, min_size=30, max_size=40))
def test_a_single_selector_takes_what_the_index_finds_for_it(selector, messages):
    wanted = [at for at, message in enumerate(messages) if wants(selector, *message)]
    single = CompiledSelector(parsed(selector), refuse)
    assert places(single, messages) == wanted
    # The subjects that it remembers change nothing.
    assert places(single, messages) == wanted


@many_pairs(8)
@given(
    selectors=st.lists(SELECTORS, min_size=20, max_size=40),
    messages=st.lists(MESSAGES, min_size=10, max_size=15),
    seed=st.integers(0, 2**32),
)
def test_zn22_random_changes_leave_the_index_as_if_built_anew(selectors, messages, seed):
    chance = random.Random(seed)
    index, held = Index(cache_size=8), {}
    for key in range(60):
        selector = chance.choice(selectors)
        if held and chance.random() < 0.3:
            gone = chance.choice(sorted(held))
            index.remove(gone)
            del held[gone]
        elif held and chance.random() < 0.3:
            changed = chance.choice(sorted(held))
            index.modify(changed, parsed(selector))
            held[changed] = selector
        else:
            index.add(key, parsed(selector))
            held[key] = selector
        if chance.random() < 0.1:
            index = Index.load(index.save(), cache_size=8)
        message = chance.choice(messages)
        assert matched(index, *message) == sorted(k for k, s in held.items() if wants(s, *message))
    assert len(index) == len({parsed(selector) for selector in held.values()})
    assert sorted(group.number for group in index.groups()) == sorted({g.number for g in index.groups()})
    assert [
        sorted(key for g in groups for key in g.members)
        for groups in index.match_many(*zip(*messages, strict=True))
    ] == [sorted(k for k, s in held.items() if wants(s, *message)) for message in messages]
    for message in messages:
        wanted = sorted(k for k, s in held.items() if wants(s, *message))
        assert matched(index, *message) == wanted
        assert [e.group for e in index.explain(*message) if e.matched] == [
            group for group in index.groups() if set(group.members) & set(wanted)
        ]
        assert all(bool(e.reason) != e.matched for e in index.explain(*message))
    for key in list(held):
        index.remove(key)
    assert_empty(index)


def test_zn18_10_000_distinct_selectors_match_as_brute_force():
    """Each is had by two subscribers, then by one, and then every other one is gone."""
    chance = random.Random(18)
    parts = [f"p{number}" for number in range(40)]
    selectors = {}
    while len(selectors) < 10_000:
        words = [chance.choice(parts) for _ in range(3)]
        family, pattern = chance.choice(
            [
                ("topic", f"{words[0]}.*.{words[1]}.{words[2]}"),
                ("topic", f"{words[0]}.#.{words[1]}"),
                ("topic-amqp", f"*.{words[0]}.#"),
                ("exact", ".".join(words)),
                ("prefix", f"{words[0]}.{words[1][:2]}"),
                ("fields", {"all": {words[0]: [words[1]], words[2]: []}}),
            ]
        )
        low = chance.randrange(1_000)
        where = chance.choice([None, ["between", "price", low, low + 20], ["=", "unit", words[0]]])
        selectors[parsed(([(family, pattern)], where))] = [(family, pattern)], where
    index = Index()
    for key, selector in enumerate([*selectors, *selectors]):
        index.add(key, selector)
    assert len(index) == 10_000
    for held in (range(20_000), range(10_000), range(1, 10_000, 2)):
        for key in {key for group in index.groups() for key in group.members} - {*held}:
            index.remove(key)
        words = [chance.choice(parts) for _ in range(4)]
        headers = {chance.choice(parts): chance.choice(parts) for _ in range(4)}
        message = ".".join(words), headers | {"price": chance.randrange(1_000), "unit": words[0]}, ""
        wanted = [key for key, selector in enumerate(selectors.values()) if wants(selector, *message)]
        assert wanted
        assert matched(index, *message) == [k for k in (*wanted, *(k + 10_000 for k in wanted)) if k in held]
        # A selector that came twice is no second one, and has no number of its own.
        assert len(index) == len({key % 10_000 for key in held})
        assert {group.number for group in index.groups()} == {key % 10_000 for key in held}


def assert_empty(index):
    """Nothing of what was filed is left behind, and the index costs what a new one costs."""
    assert len(index) == 0
    assert not index._classes._values
    assert not index._classes._without
    assert not index.needs_headers
    assert not index._unconditional._families
    assert not index._conditional._families
    conditions = index._conditions
    assert not conditions._root
    assert not any(
        (conditions._uses, conditions._presences, conditions._places, conditions._grids, conditions._owners)
    )


def test_geo_names_its_headers():
    pattern = Geo.normalise({"circle": [0, 0, 100], "lat": "y", "lon": "x"})
    assert Geo.matches(pattern, "", {"y": 0.1, "x": 0.1}, "")
    assert not Geo.matches(pattern, "", {"lat": 0.1, "lon": 0.1}, "")
