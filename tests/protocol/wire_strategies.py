"""Parts of which hypothesis builds messages: a strategy for each rule, so for every field of every command.

And for every argument of every topic of QUERY and CHANGE: what it may hold, and what it may not.
"""

from math import inf, nan
from typing import Any

from hypothesis import strategies as st

from malamute.protocol import limits
from malamute.protocol.admin import CHANGES, QUERIES
from malamute.protocol.admin.topic import Arguments, arguments_of
from malamute.protocol.fields import FEED_PREFIX, MESSAGE_STATES, OPERATIONS, WHENS, Rule
from malamute.protocol.messages import SPECS, Change, Deliver, Query, Spec
from malamute.protocol.names import is_name

NUMBERS = st.integers(0, limits.NUMBER_MAX)
SEQUENCES = st.integers(1, limits.NUMBER_MAX)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
NAMES = st.text(min_size=1, max_size=60).filter(is_name)
PROPERTIES = st.none() | st.dictionaries(st.text(max_size=10), SCALARS, max_size=2)
RANGES = st.lists(st.tuples(SEQUENCES, SEQUENCES).map(sorted), min_size=1, max_size=4)


def _text(bytes_max: int) -> st.SearchStrategy[str]:
    return st.text(max_size=80).filter(lambda text: len(text.encode()) <= bytes_max)


BY_WORDS: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "other name": NAMES,
    "urls": st.lists(
        st.sampled_from(["tcp://edge:9999", "ipc:///run/malamute"]), min_size=1, max_size=limits.URLS_MAX
    ),
    "urls of a pair": st.lists(st.just("tcp://edge:9999"), max_size=limits.URLS_MAX),
    "ways": st.lists(
        st.lists(st.tuples(NAMES, NAMES, NAMES, NUMBERS).map(list), min_size=1, max_size=3), max_size=3
    ),
    "address": NAMES | st.just(""),
    "number": NUMBERS,
    "ref": NUMBERS,
    "sequence": SEQUENCES,
    "source": st.integers(0, limits.SOURCE_MAX),
    "new source": st.integers(1, limits.SOURCE_MAX),
    "credit": st.integers(-1, limits.NUMBER_MAX),
    "opcode": st.integers(0, 127),
    "code": st.integers(100, 999),
    "duration": st.integers(0, limits.DURATION_MS_MAX),
    "delay": st.integers(-1, limits.DURATION_MS_MAX),
    "kind": st.sampled_from(["mailbox", "service"]),
    "correlation": st.integers(-limits.NUMBER_MAX, limits.NUMBER_MAX) | _text(limits.TEXT_BYTES_MAX),
    "words": _text(limits.TEXT_BYTES_MAX),
    "token": _text(limits.TOKEN_BYTES_MAX),
    "long text": _text(limits.WHERE_BYTES_MAX),
    "versions": st.lists(SEQUENCES, min_size=1, max_size=limits.VERSIONS_MAX),
    "criteria": st.lists(st.tuples(st.text(max_size=10), PLAIN).map(list), min_size=1, max_size=4),
    "ranges": RANGES,
    "held ranges": RANGES | st.just([]),
    "settled ranges": st.lists(RANGES.map(lambda drawn: drawn[0]), max_size=limits.SETTLED_MAX),
    "stored ranges": st.tuples(RANGES, NUMBERS).map(lambda drawn: [[*pair, drawn[1]] for pair in drawn[0]]),
    "boolean": st.booleans(),
    "value": st.binary(max_size=40),
    "keys": st.lists(NAMES, min_size=1, max_size=4),
    "rows of keys": st.lists(
        st.tuples(NAMES, NUMBERS, st.none() | st.binary(max_size=9), NUMBERS).map(list),
        min_size=1,
        max_size=4,
    ),
    "new number": SEQUENCES,
    "expected revision": st.integers(-1, limits.NUMBER_MAX),
    "amount": st.integers(-limits.NUMBER_MAX, limits.NUMBER_MAX),
    "binary": st.binary(max_size=40),
    "map": st.dictionaries(st.text(max_size=10), PLAIN, max_size=4),
    "limits": st.dictionaries(st.text(max_size=10), NUMBERS, max_size=4),
    "any value": PLAIN,
    "subject": _text(limits.SUBJECT_BYTES_MAX),
    "path": st.text(max_size=40).map(lambda text: "a" + text.replace("\0", "")),
    "rows": st.integers(1, limits.ROWS_MAX),
    "seconds": st.integers(0, limits.AGE_SECONDS_MAX) | st.floats(0, limits.AGE_SECONDS_MAX),
    "delays": st.lists(st.floats(0, limits.AGE_SECONDS_MAX), max_size=4),
    "state": st.sampled_from(["", *MESSAGE_STATES]),
    "names": st.lists(NAMES, max_size=4),
    "rules": st.lists(_text(limits.RULE_BYTES_MAX), max_size=4),
    "password hash": _text(limits.TEXT_BYTES_MAX),
    "place": st.tuples(st.sampled_from(["stream", "mailbox", "service"]), NAMES).map("/".join),
    "feed": NAMES.filter(lambda name: len(name.encode()) <= limits.NAME_BYTES_MAX - len(FEED_PREFIX)),
    "operation": st.sampled_from(OPERATIONS),
    "when": st.sampled_from(WHENS),
    "uid": st.integers(0, limits.UID_MAX),
    "headers": st.dictionaries(
        st.text(max_size=10),
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
        max_size=4,
    ),
}

COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "senders": NAMES | st.just(""),
    "subjects": _text(limits.SUBJECT_BYTES_MAX),
    "records": st.binary(max_size=40) | st.integers(65_535, 65_537).map(bytes),
    "flags": st.booleans(),
    "sequences": SEQUENCES,
    "properties": PROPERTIES,
}
"""The items of the types that are columns: they need one length in a message."""


@st.composite
def messages(draw: st.DrawFn, spec: Spec) -> Any:
    """Any message of a spec."""
    count = draw(st.integers(1, 5))
    fields = [draw(_field(rule.words, count)) for rule in spec.rules]
    if spec.message is Deliver:
        return Deliver(*fields, draw(st.binary()), draw(_frames(st.integers(0, 3))))
    return spec.message(*fields)


ARGUMENTS: dict[tuple[type[Query | Change], str], Arguments] = {
    (command, topic): arguments_of(kind)
    for command, topics in ((Query, QUERIES), (Change, CHANGES))
    for topic, kind in topics.items()
}
"""The arguments of each topic."""

ODD_FLOATS = st.sampled_from([inf, -inf, nan, 1e300, -1e300, 5e-324, -0.0, 1e19, -1.0])
ANYTHING = (
    PLAIN
    | ODD_FLOATS
    | st.sampled_from([-1, 0, 2**63, 2**64 - 1, -(2**63), "", "\0", "/\0", "$sys", "x" * 5000, [], {}])
    | st.lists(ODD_FLOATS | st.integers(-2, 2) | st.text(max_size=3), max_size=3)
)
"""Values that an argument may or may not have, with those that have done harm before."""


def argument(rule: Rule) -> st.SearchStrategy[Any]:
    """Any value that an argument may have."""
    if rule.words in COLUMNS:
        return st.lists(COLUMNS[rule.words], min_size=1, max_size=4)
    return BY_WORDS[rule.words]


def arguments(takes: Arguments) -> st.SearchStrategy[dict[str, Any]]:
    """Any arguments that a topic takes."""
    required = {name: argument(rule) for name, rule in takes.required.items()}
    optional = {name: argument(rule) for name, rule in takes.optional.items()}
    return st.fixed_dictionaries(required, optional=optional)


def _field(words: str, count: int) -> st.SearchStrategy[Any]:
    if words not in COLUMNS:
        return BY_WORDS[words]
    column = st.lists(COLUMNS[words], min_size=count, max_size=count)
    return column | st.none() if words == "properties" else column


def _frames(count: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[bytes, ...]]:
    return count.flatmap(lambda n: st.tuples(*[st.binary(max_size=40)] * n))


ANY_MESSAGE = st.sampled_from(SPECS).flatmap(messages)
