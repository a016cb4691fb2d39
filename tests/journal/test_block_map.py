"""Where messages are: pages of neighbours, held to a dictionary."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from malamute.journal.block_map import PAGE, Block, BlockMap

BLOCKS = [Block(number, 0) for number in range(3)]

sequences = st.one_of(st.integers(1, 4 * PAGE), st.sampled_from([PAGE - 1, PAGE, PAGE + 1, 1 << 40]))


class PlacesModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.places = BlockMap()
        self.model = {}

    @rule(
        first=sequences, count=st.integers(1, 3 * PAGE), block=st.sampled_from(BLOCKS), size=st.integers(0, 2)
    )
    def put(self, first, count, block, size):
        new = {first + i: (block, size + i) for i in range(count)}
        before = [self.model[s] for s in new if s in self.model]
        assert self.places.put(first, [*new.values()]) == before
        self.model |= new

    @rule(first=sequences, count=st.one_of(st.integers(-1, 3 * PAGE), st.just(1 << 62)))
    def take(self, first, count):
        gone = [s for s in self.model if first <= s < first + count]
        taken = self.places.pop(first, first + count - 1)
        assert sorted(taken, key=repr) == sorted(map(self.model.pop, gone), key=repr)

    @rule()
    def pop_all(self):
        assert sorted(self.places.pop_all(), key=repr) == sorted(self.model.values(), key=repr)
        self.model.clear()

    @rule(first=sequences, count=st.integers(0, 3 * PAGE), swap=st.none() | st.integers(0, 3 * PAGE))
    def look_up(self, first, count, swap):
        """Neighbours in their order, or in another, or one of them twice."""
        asked = [*range(first, first + count)]
        if swap is not None and len(asked) > 2:
            asked[1 + swap % (count - 2)] = first
        found = self.places.blocks_of(asked)
        assert found == [self.model[s][0] if s in self.model else None for s in asked]

    @invariant()
    def same(self):
        assert len(self.places) == len(self.model)
        assert all(self.places.block_of(s) is block for s, (block, _) in self.model.items())
        edges = {s + off for s in self.model for off in (-1, 1)} - self.model.keys()
        assert not any(s in self.places for s in edges)

    @invariant()
    def no_page_is_empty(self):
        assert self.places._pages.keys() == {s // PAGE for s in self.model}


TestPlaces = PlacesModel.TestCase


@pytest.mark.parametrize("first", [0, 1, PAGE - 1, PAGE])
@pytest.mark.parametrize("count", [1, PAGE - 1, PAGE, PAGE + 1])
def test_a_run_is_put_and_taken_whatever_pages_it_touches(first, count):
    places = BlockMap()
    run = [(BLOCKS[0], n) for n in range(count)]
    assert places.put(first, run) == []
    assert first - 1 not in places
    assert first + count not in places
    assert places.pop(first, first + count - 1) == run
    assert len(places) == 0
