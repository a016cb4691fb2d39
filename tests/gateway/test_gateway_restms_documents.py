"""The documents of RestMS: XML and JSON say the same, and what is hostile is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.errors import MalamuteError, Malformed, MediaTypeRefused, TooLarge
from malamute.gateway.restms.documents import (
    DEPTH_MAX,
    ELEMENTS_MAX,
    RESTMS_JSON,
    RESTMS_XML,
    ROOT,
    TEXT_XML,
    Element,
    accepted,
    can_be_xml,
    read,
    write,
)

_names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda name: name != "xmlns")
_texts = st.text(max_size=20).filter(can_be_xml)
_attributes = st.dictionaries(_names, _texts, max_size=3)


def _parent(children: st.SearchStrategy[Element]) -> st.SearchStrategy[Element]:
    # JSON keeps the order of children of a kind, and attributes are no children.
    one_kind = st.tuples(_names, st.lists(children, min_size=1, max_size=3))
    return st.builds(
        lambda name, attributes, kind: Element(
            name,
            {key: value for key, value in attributes.items() if key != kind[0]},
            [Element(kind[0], child.attributes, child.children, child.text) for child in kind[1]],
        ),
        _names,
        _attributes,
        one_kind,
    )


_leaves = st.builds(lambda a, text: Element("content", a, text=text), _attributes, _texts)
_trees = st.recursive(_leaves, _parent, max_leaves=6).map(lambda tree: Element(ROOT, children=[tree]))


@settings(max_examples=50)
@given(_trees)
def test_zn9_xml_and_json_say_the_same(tree: Element) -> None:
    tree = _without_layout(tree)
    for media in (RESTMS_XML, RESTMS_JSON):
        assert read(write(tree, media), media) == tree


def _without_layout(element: Element) -> Element:
    """White space alone is a text in a content, and layout anywhere else."""
    text = element.text if element.name == "content" or element.text.strip() else ""
    return Element(element.name, element.attributes, [*map(_without_layout, element.children)], text)


def test_zn7_json_has_no_name_space() -> None:
    root = read(b'<restms xmlns="http://www.restms.org/schema/restms"><feed type=""/></restms>', TEXT_XML)
    assert json.loads(write(root, RESTMS_JSON)) == {"restms": {"feed": [{"type": ""}]}}
    assert b"xmlns" in write(root, RESTMS_XML)


def test_what_is_unknown_is_passed_over_and_what_xml_cannot_say_is_replaced() -> None:
    root = read(b'<restms xmlns:o="other"><o:feed/><feed o:type="x" type="y"/></restms>', "")
    assert [feed.attributes for feed in root.each("feed")] == [{"other type": "x", "type": "y"}]
    assert b"a\xef\xbf\xbdb" in write(Element(ROOT, children=[Element("m", text="a\0b")]), RESTMS_XML)


BOMB = b"""<!DOCTYPE restms [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><restms>&b;</restms>"""
OUTSIDE = b"""<!DOCTYPE restms [<!ENTITY x SYSTEM "file:///etc/passwd">]><restms>&x;</restms>"""


@pytest.mark.parametrize(
    ("media", "body", "error"),
    [
        (TEXT_XML, BOMB, Malformed),
        (TEXT_XML, OUTSIDE, Malformed),
        (TEXT_XML, b'<!DOCTYPE restms SYSTEM "http://example.com/x.dtd"><restms/>', Malformed),
        (TEXT_XML, b"<restms>&unknown;</restms>", Malformed),
        (TEXT_XML, b"<restms><feed></restms>", Malformed),
        (TEXT_XML, b"", Malformed),
        (TEXT_XML, b"<restms>\xff</restms>", Malformed),
        (TEXT_XML, '<?xml version="1.0" encoding="utf-16"?><restms/>'.encode("utf-16"), Malformed),
        (TEXT_XML, b"<other/>", Malformed),
        (TEXT_XML, b'<restms a="1" a="2"/>', Malformed),
        (TEXT_XML, b"<restms>" + b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX + b"</restms>", TooLarge),
        (TEXT_XML, b"<restms>" + b"<a/>" * ELEMENTS_MAX + b"</restms>", TooLarge),
        (TEXT_XML, b"<restms " + b" ".join(b'a%d=""' % n for n in range(101)) + b"/>", TooLarge),
        (RESTMS_JSON, b'{"restms": ', Malformed),
        (RESTMS_JSON, b'{"restms": {"feed": [1]}}', Malformed),
        (RESTMS_JSON, b'{"restms": {"feed": [[{}]]}}', Malformed),
        (RESTMS_JSON, b'{"restms": {"feed": true}}', Malformed),
        (RESTMS_JSON, b'{"restms": null}', Malformed),
        (RESTMS_JSON, b'{"restms": {}, "more": {}}', Malformed),
        (RESTMS_JSON, b'{"restms": {"a": "\xff"}}', Malformed),
        (RESTMS_JSON, rb'{"restms": {"a": "\ud800"}}', Malformed),
        (RESTMS_JSON, b"[" * 100_000, Malformed),
        (RESTMS_JSON, b'{"restms":' + b'{"a":' * DEPTH_MAX + b"{}" + b"}" * (DEPTH_MAX + 1), TooLarge),
        ("text/plain", b"<restms/>", MediaTypeRefused),
    ],
)
def test_bad_documents_are_refused(media: str, body: bytes, error: type[MalamuteError]) -> None:
    with pytest.raises(error):
        read(body, media)


@given(st.binary(max_size=200) | st.text(alphabet='<>/"{}[]:,&;!a ', max_size=60).map(str.encode))
def test_any_bytes_are_a_document_or_a_numbered_error(body: bytes) -> None:
    for media in (RESTMS_XML, RESTMS_JSON):
        with suppress(Malformed, TooLarge):
            assert read(body, media).name == ROOT


def test_the_type_of_an_answer_is_what_is_accepted_first() -> None:
    assert accepted("") == accepted("*/*") == accepted("text/html, */*;q=0.8") == TEXT_XML
    assert accepted("application/json") == accepted(f"text/html, {RESTMS_JSON};q=1") == RESTMS_JSON
    assert accepted(RESTMS_XML) == RESTMS_XML
