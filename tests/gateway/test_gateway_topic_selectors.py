"""Topic selectors of Mercure as criteria: a template matches what it can be expanded to, and nothing else."""

from __future__ import annotations

import pytest

from malamute.errors import InvalidSelector
from malamute.gateway.topic_selectors import criteria_of, regex_of
from malamute.matching import Index, Selector


def _matches(selector: str, topic: str) -> bool:
    index: Index[str] = Index()
    index.add("x", Selector.parse(criteria_of([selector])))
    return bool([*index.match(topic, {})])


@pytest.mark.parametrize(
    ("template", "topics"),
    [
        ("https://e.com/b/{id}", ["https://e.com/b/1", "https://e.com/b/", "https://e.com/b/a%20b,c"]),
        ("/m{x,y}", ["/m1024,768", "/m1024", "/m"]),
        ("/{+path}/here", ["/a/b?c=d#e/here", "//here"]),
        ("/x{#a}", ["/x", "/x#", "/x#a/b"]),
        ("/x{.a,b}", ["/x", "/x.1", "/x.1.2"]),
        ("/x{/p*}", ["/x", "/x/a", "/x/a/b/c"]),
        ("/x{;a,b}", ["/x", "/x;a=1", "/x;a;b=2"]),
        ("/x{?a,b}", ["/x", "/x?a=1", "/x?b=2", "/x?a=1&b=2", "/x?a="]),
        ("/x?f=1{&a}", ["/x?f=1", "/x?f=1&a=2"]),
        ("/x{?m*}", ["/x", "/x?k=v", "/x?k=v&l=w"]),
        ("/{a:3}", ["/", "/abc", "/%C3%A4bc"]),
        ("/ü (x)/{a}", ["/ü (x)/1"]),
        ("/{a}/{a}", ["/1/2"]),
        ("/{a.b,%C3%A4}", ["/1,2"]),
        ("plain", ["plain"]),
        ("*", ["anything", "*"]),
        ("/{+}", ["/{+}"]),
        ("/{a}}", ["/{a}}"]),
        ("/{a}", ["/{a}"]),
    ],
)
def test_a_selector_matches_what_it_stands_for(template: str, topics: list[str]) -> None:
    assert [topic for topic in topics if not _matches(template, topic)] == []


@pytest.mark.parametrize(
    ("template", "topics"),
    [
        (
            "https://e.com/b/{id}",
            ["https://e.com/b/1/2", "https://e_com/b/1", "xhttps://e.com/b/1", "https://e.com/b/ä"],
        ),
        ("/{+path}/here", ["/a/there", "/ä/here"]),
        ("/x{.a,b}", ["/x.1/2", "/x1"]),
        ("/x{/p}", ["/x/a/b", "/xa"]),
        ("/x{?a,b}", ["/x?b=2&a=1", "/x?c=1", "/x?a=1&a=2", "/xa=1", "/x?a"]),
        ("/x{;a}", ["/x;b=1", "/xa=1"]),
        ("/{a:3}", ["/abcd"]),
        ("/%{a}", ["/%/"]),
        ("/{a}}", ["/1}"]),
        ("plain", ["plainer", "Plain"]),
    ],
)
def test_a_selector_matches_nothing_else(template: str, topics: list[str]) -> None:
    assert [topic for topic in topics if _matches(template, topic)] == []


@pytest.mark.parametrize(
    "text", ["plain", "/{", "/{}", "/{a", "/{a b}", "/{=a}", "/{a:0}", "/{a:10000}", "/{a}{"]
)
def test_what_is_no_template_is_a_topic(text: str) -> None:
    assert regex_of(text) is None


def test_everything_needs_no_other_selector() -> None:
    assert criteria_of(["a", "*", "b"]) == [("all", "")]


def test_a_template_that_is_too_much_for_a_pattern_is_refused() -> None:
    assert _matches("/{?" + ",".join("abcd") + "}", "/?b=1&d=2")
    with pytest.raises(InvalidSelector):
        _matches("/{" + ",".join(f"v{number}" for number in range(50)) + "}", "/")
