import pickle
import re

import pytest

from malamute import errors
from malamute.errors import Failed, InvalidSelector, MalamuteError, Refused, from_wire
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import WHERE_BYTES_MAX
from malamute.protocol.messages import Error, error_message

CLASSES = [
    error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, MalamuteError)
]
WIRE = [error for error in CLASSES if issubclass(error, Refused | Failed) and error.code]
_ENTRY = re.compile(r"[├└]── (\w+)(?: +(\d{3}))?(?!\S)")


def drawing() -> set[tuple[str, str, int]]:
    """The tree of the docstring: (parent, error, code)."""
    entries: set[tuple[str, str, int]] = set()
    parent = ""
    for line in (errors.__doc__ or "").splitlines():
        for found in _ENTRY.finditer(line):
            if found.start() == 4:
                parent = found[1]
            above = "MalamuteError" if found.start() == 4 else parent
            entries.add((above, found[1], int(found[2] or 0)))
    return entries


def test_the_tree_is_the_one_that_is_drawn() -> None:
    tree = {(e.__bases__[0].__name__, e.__name__, e.code) for e in CLASSES if e is not MalamuteError}
    assert drawing() == tree


def test_no_two_errors_have_one_number() -> None:
    codes = [error.code for error in CLASSES if error.code]
    assert len(codes) == len(set(codes)) == len(errors.BY_CODE)


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_a_number_and_its_words_give_the_error_back(code: int) -> None:
    error = from_wire(code, "what was wrong")
    assert type(error) is errors.BY_CODE[code]
    assert (error.code, error.text) == (code, "what was wrong")
    assert str(error) == f"what was wrong (error {code})"


def test_a_number_that_is_not_known_is_reported_in_the_words() -> None:
    error = from_wire(499, "what was wrong")
    assert type(error) is MalamuteError
    assert str(error) == "what was wrong (unknown error 499)"


def test_an_error_without_words_says_its_name() -> None:
    assert str(errors.TryLater()) == "TryLater (error 503)"


@pytest.mark.parametrize("error", WIRE, ids=lambda error: error.__name__)
def test_who_is_refused_gets_a_hint(error: type[MalamuteError]) -> None:
    assert error.hint


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_says_when_it_is_raised(error: type[MalamuteError]) -> None:
    assert (error.__doc__ or "").startswith("The base of" if error is MalamuteError else "Raised ")


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_survives_pickling(error: type[MalamuteError]) -> None:
    before = error("words")
    before.about, before.ref = 2, 7
    after = pickle.loads(pickle.dumps(before))
    assert (type(after), str(after), after.about, after.ref) == (error, str(before), 2, 7)


def test_a_selector_error_shows_the_position() -> None:
    error = InvalidSelector("empty part", 5)
    assert error.position == 5
    assert error.text == "empty part at position 5"


# --- on the wire


@pytest.mark.parametrize("error", WIRE, ids=lambda error: error.__name__)
def test_an_error_crosses_the_wire(error: type[MalamuteError]) -> None:
    sent = error_message(error("words"), 2, 7)
    assert sent == Error(error.code, "words", 2, 7)
    received = decode(encode(sent))
    assert isinstance(received, Error)
    assert type(from_wire(received.code, received.text)) is error


def test_what_an_error_is_about_goes_before_what_the_caller_knows() -> None:
    error = errors.Malformed("words")
    error.about, error.ref = 3, 9
    assert error_message(error, 2, 7) == Error(400, "words", 3, 9)


def test_words_that_are_too_long_for_the_wire_are_cut_between_characters() -> None:
    sent = error_message(errors.NotFound("é" * WHERE_BYTES_MAX))
    assert sent.text == "é" * (WHERE_BYTES_MAX // 2)
    odd = error_message(errors.NotFound("x" + "é" * WHERE_BYTES_MAX))
    assert odd.text == "x" + "é" * (WHERE_BYTES_MAX // 2 - 1)
    assert decode(encode(odd)) == odd


def test_words_that_are_no_text_are_made_text() -> None:
    assert decode(encode(error_message(errors.InvalidName("\ud800")))) == Error(414, "?")
