"""The matching vectors, through the index, the family alone, and the naive oracle.

Vectors whose source is a document are its worked examples; where the source begins with "decision", they are
ours: boundary cases that the documents leave open.
"""

import json
from pathlib import Path

import matching_oracle as oracle
import pytest

from malamute.matching import FAMILIES, ConstituentTables, Index, Selector
from malamute.matching.fields import Fields
from malamute.matching.pattern import forms

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text("utf-8"))
NAIVE = {"topic": oracle.topic, "topic-amqp": oracle.topic_amqp}


def index_of(family, patterns):
    index = Index()
    for number, pattern in enumerate(patterns):
        index.add(number, Selector.parse([[family, pattern]]))
    return index


def matched(index, *message):
    return sorted(key for group in index.match(*message) for key in group.members)


def name(case):
    return f"{case.get('matcher', '')}-{case['message']}-{case['source']}"


@pytest.mark.parametrize("case", VECTORS["topic"], ids=name)
def test_a_topic_vector(case):
    patterns, subject, family = case["subscriptions"], case["message"], case["matcher"]

    assert matched(index_of(family, patterns), subject) == case["match"]
    alone = FAMILIES[family]
    assert [n for n, p in enumerate(patterns) if alone.matches(p, subject, {}, "")] == case["match"]
    assert [n for n, p in enumerate(patterns) if NAIVE[family](p, subject)] == case["match"]


@pytest.mark.parametrize("case", VECTORS["fields"], ids=name)
@pytest.mark.parametrize("mode", ["any", "all"])
def test_a_fields_vector(case, mode):
    pieces = [piece.strip().partition("=") for piece in case["message"].split(",") if piece.strip()]
    headers = {field: value if sign else None for field, sign, value in pieces}
    patterns = [{mode: request} for request in case["subscriptions"]]

    assert matched(index_of("fields", patterns), "", headers) == case[mode]
    counted = [Fields.hits(Fields.normalise(pattern), headers) for pattern in patterns]
    assert counted == case["hits"]


@pytest.mark.parametrize(
    "request_",
    [
        [["currency", "USD"], ["currency", "GBP"]],
        {"currency": ["USD", "GBP"]},
        "currency=USD, currency=GBP",
    ],
    ids=["a list", "a mapping", "text"],
)
@pytest.mark.parametrize("mode", ["any", "all"])
def test_rq3_one_field_may_be_asked_for_with_several_values_of_which_any_will_do(request_, mode):
    index = index_of("fields", [{mode: request_}])
    wanted = {"USD": [0], "GBP": [0], "EUR": [], "": [], None: []}
    assert {value: matched(index, "", {"currency": value}) for value in wanted} == wanted


@pytest.mark.parametrize("title", VECTORS["optimised_tables"])
def test_wk3_the_constituent_tables_are_the_printed_ones_row_by_row(title):
    case = VECTORS["optimised_tables"][title]
    tables = ConstituentTables()
    for number, pattern in enumerate(case["subscriptions"]):
        tables.add(number, forms(title.split()[0], pattern))

    def bits(row):
        return [int(number in row) for number in range(len(case["subscriptions"]))]

    assert tables.parts_max == case["max_parts"]
    printed = [
        {
            **{part: bits(row) for part, row in table.literals.items()},
            "null": bits(table.null),
            "other": bits(table.other),
        }
        for table in tables.printed()
    ]
    assert printed == case["tables"]


def test_the_news_example_of_restms():
    news = ["rec.pets.dogs", "rec.cars", "rec.pets.dogs", "rec.pets.cats", "rec.cars", "rec.pets.dogs"]
    index = index_of("topic-amqp", ["rec.pets.*"])
    assert [subject for subject in news if index.match(subject)] == [s for s in news if "pets" in s]
