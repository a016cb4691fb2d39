"""ZN22: what an index is compiled to is saved and loaded; what is damaged is refused, and harms nobody."""

import random
import zlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.errors import InvalidValue, MalamuteError
from malamute.matching import Index, Selector
from malamute.matching.saved import _HEAD, MAGIC, VERSION

SELECTORS = [
    Selector.parse(criteria, where)
    for criteria, where in (
        ([["topic", "a.b"]], ""),
        ([["topic", "a.*"], ["topic", "*.c"]], ""),
        ([["topic", "a.#.b.#.c"], ["exact", "x"]], ""),
        ([["topic-amqp", "#"]], ""),
        ([["topic", "*.*"]], ""),
        ([["exact", "a.b"]], ""),
        ([["exact", "\ud800"]], ""),
        ([["prefix", "a."], ["all", ""]], ""),
        ([["prefix", "b"]], "price > 3"),
        ([["regex", "^a"]], ""),
        ([["fields", {"all": {"unit": ["C", 3], "flag": True}}]], ""),
        ([["geo", {"circle": [59.9, 10.7, 50]}]], ""),
        ([["topic", "a.b"]], "unit = 'C' and not sender = 'x'"),
    )
]
MESSAGES = [
    (subject, headers)
    for subject in ("a", "a.b", "a.c", "a.x.b.y.c", "b.c", "x", "\ud800", "", "a.b.c.d")
    for headers in ({}, {"unit": "C", "flag": True, "price": 5}, {"lat": 59.9, "lon": 10.7, "price": 1})
]


@pytest.fixture
def index():
    index = Index()
    for number, selector in enumerate(SELECTORS):
        index.add(("key", number), selector, value="not saved")
        index.add(number, selector)
    return index


def results(index):
    return [{group.selector: {*group.members} for group in index.match(*message)} for message in MESSAGES]


def test_a_loaded_index_matches_as_the_one_that_was_saved(index):
    data = index.save()
    loaded = Index.load(data, cache_size=8)
    assert len(loaded) == len(index)
    assert results(loaded) == results(index)
    assert any(results(index))
    assert results(Index.load(loaded.save())) == results(index)
    assert [group.selector for group in loaded.groups()] == SELECTORS
    assert {*loaded._by_key} == {*index._by_key}


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_loaded_index_changes_like_any_other(index, looked_at):
    loaded = Index.load(index.save())
    if looked_at:
        results(loaded)
    for one in (index, loaded):
        for number in range(0, len(SELECTORS), 2):
            one.remove(number)
            one.remove(("key", number))
        one.add("new", SELECTORS[1])
        one.add("other", Selector.parse([["topic", "a.new.*"]]))
        one.modify(("key", 3), SELECTORS[4])
    assert results(loaded) == results(index)
    assert results(Index.load(loaded.save())) == results(index)
    with pytest.raises(KeyError):
        loaded.add("new", SELECTORS[0])
    for key in [*loaded._by_key]:
        loaded.remove(key)
    assert not any(results(loaded))
    assert not loaded._unconditional._families
    assert not loaded._conditional._families


def test_nothing_is_saved_as_well():
    loaded = Index.load(Index().save())
    assert len(loaded) == 0
    assert loaded.match("a") == ()
    loaded.add("k", SELECTORS[0])
    assert loaded.match("a.b")[0].members == {"k": None}


def test_a_key_that_cannot_be_saved_is_refused():
    index = Index()
    index.add(object(), SELECTORS[0])
    with pytest.raises(TypeError):
        index.save()


def test_what_is_damaged_is_refused(index):
    data = index.save()
    chance = random.Random(1)
    for end in {0, 1, _HEAD.size - 1, _HEAD.size, len(data) - 1, *chance.sample(range(len(data)), 20)}:
        with pytest.raises(InvalidValue, match="damaged saved index"):
            Index.load(data[:end])
    for place in {*range(_HEAD.size), *chance.sample(range(len(data)), 200)}:
        if 6 <= place < 8:
            continue  # of no meaning
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        with pytest.raises(InvalidValue):
            Index.load(bytes(changed))
    with pytest.raises(InvalidValue, match="damaged saved index"):
        Index.load(data + b"x")


def test_another_version_is_refused_by_its_number(index):
    newer = bytearray(index.save())
    newer[4] = VERSION + 1
    with pytest.raises(InvalidValue, match=f"format {VERSION + 1}: expected {VERSION}"):
        Index.load(bytes(newer))


def with_head(body):
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(body), len(body)) + body


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**33),
    st.binary(max_size=9),
    st.sampled_from(["topic", "a.b", ""]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(LEAVES, inner, max_size=2))
)


@settings(max_examples=50)
@given(value=VALUES, seed=st.integers(0, 2**32))
def test_whoever_writes_the_right_checksum_breaks_nothing(value, seed):
    """One part is another value, or some of its bytes are others."""
    index = Index()
    for number, selector in enumerate(SELECTORS):
        index.add(number, selector)
    body = msgpack.unpackb(index.save()[_HEAD.size :], strict_map_key=False, unicode_errors="surrogatepass")
    chance = random.Random(seed)
    place, at = body, chance.randrange(len(body))
    while isinstance(place[at], list | dict) and place[at] and chance.random() < 0.8:
        place = place[at]
        at = chance.choice([*place]) if isinstance(place, dict) else chance.randrange(len(place))
    if isinstance(place[at], bytes) and place[at] and chance.random() < 0.8:
        changed = bytearray(place[at])
        changed[chance.randrange(len(changed))] = chance.choice([0, 1, 2, 3, 200])
        value = bytes(changed)
    place[at] = value
    try:
        loaded = Index.load(with_head(msgpack.packb(body, unicode_errors="surrogatepass")))
    except InvalidValue:
        return
    results(loaded)
    for key in [key for group in loaded.groups() for key in group.members]:
        try:
            loaded.modify(key, SELECTORS[0])
        except MalamuteError:
            continue
        loaded.remove(key)
        results(loaded)


def test_numbers_beyond_the_selectors_are_refused():
    """Else a few bytes would make a table of free numbers of any size."""
    index = Index()
    index.add("k", SELECTORS[0])
    body = msgpack.unpackb(index.save()[_HEAD.size :], strict_map_key=False)
    shape = body[-1]["topic"][0][1][0]
    shape[-1] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(InvalidValue, match="the rows are not those of the selectors"):
        Index.load(with_head(msgpack.packb(body)))
