"""RQ15: every method of the bitmap against a Python set."""

from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.matching.bitmap import Bitmap, union

NUMBERS = st.sets(st.one_of(st.integers(0, 70), st.integers(65_500, 65_600), st.integers(0, 2**20)))
RUNS = st.builds(
    lambda start, size: set(range(start, start + size)), st.integers(0, 200), st.integers(0, 300)
)
SETS = st.one_of(NUMBERS, RUNS)


@settings(deadline=None)
@given(SETS, SETS)
def test_the_operations(a, b):
    one, two = Bitmap(a), Bitmap(b)
    assert set(one & two) == a & b
    assert set(one | two) == a | b
    assert set(one ^ two) == a ^ b
    assert set(one - two) == a - b
    assert (len(one), bool(one), list(one)) == (len(a), bool(a), sorted(a))
    assert isinstance(one & two, Bitmap)
    one &= two
    assert set(one) == a & b


@settings(deadline=None)
@given(SETS, st.integers(0, 600))
def test_set_clear_test_and_reset(a, number):
    bitmap = Bitmap(a)
    bitmap.add(number)
    assert number in bitmap
    bitmap.discard(number)
    bitmap.discard(number)
    assert number not in bitmap
    bitmap.clear()
    assert not bitmap


@settings(deadline=None)
@given(SETS, st.integers(0, 600))
def test_complement_is_bounded_by_the_declared_size(a, size):
    assert set(Bitmap(a).complement(size)) == set(range(size)) - a


@settings(deadline=None)
@given(SETS, st.integers(0, 700))
def test_first_last_next_and_previous(a, number):
    bitmap = Bitmap(a)
    assert bitmap.first() == min(a, default=None)
    assert bitmap.last() == max(a, default=None)
    assert bitmap.next(number) == min((n for n in a if n > number), default=None)
    assert bitmap.previous(number) == max((n for n in a if n < number), default=None)
    assert bitmap.first_clear() == next(n for n in range(2**21) if n not in a)
    assert bitmap.next_clear(number) == next(n for n in range(number + 1, 2**21) if n not in a)
    clear = [n for n in range(number) if n not in a]
    assert bitmap.previous_clear(number) == (clear[-1] if clear else None)
    assert bitmap.last_clear(number) == (clear[-1] if clear else None)


@settings(deadline=None)
@given(st.lists(SETS, max_size=4))
def test_a_stream_of_bitmaps_comes_back(sets):
    stream = BytesIO()
    for numbers in sets:
        Bitmap(numbers).write(stream)
    stream.seek(0)
    assert [set(Bitmap.read(stream)) for _ in sets] == sets


@pytest.mark.parametrize("data", [b"", b"\x08", b"\x08\0\0\0\0\0\0\0abc", b"\x04\0\0\0\0\0\0\0abcd"])
def test_a_damaged_stream_is_refused(data):
    with pytest.raises(ValueError, match=r"bitmap|buffer|deseriali"):
        Bitmap.read(BytesIO(data))


@settings(deadline=None)
@given(st.lists(SETS, min_size=1, max_size=5))
def test_union(sets):
    rows = [Bitmap(numbers) for numbers in sets]
    assert set(union(rows)) == set().union(*sets)
    assert [set(row) for row in rows] == sets


def test_bit_0_and_the_last_bit():
    bitmap = Bitmap([0, 2**32 - 1])
    assert (bitmap.first(), bitmap.last()) == (0, 2**32 - 1)
    assert bitmap.next(0) == 2**32 - 1
    assert bitmap.previous(2**32 - 1) == 0
    assert bitmap.next(2**32 - 1) is None
    assert bitmap.previous(0) is None


def test_wp57_a_bitmap_is_compressed():
    """A bit for each number up to the highest would be 512 MB, and four bytes for each of a million 4 MB."""
    few, many = BytesIO(), BytesIO()
    Bitmap([*range(0, 2**32, 2**22)]).write(few)
    Bitmap(range(2**20)).write(many)
    assert len(few.getvalue()) < 20 * 2**10
    assert len(many.getvalue()) < 2**20 / 8 * 1.01
    for stream, numbers in ((few, range(0, 2**32, 2**22)), (many, range(2**20))):
        stream.seek(0)
        assert [*Bitmap.read(stream)] == [*numbers]
