"""The route: which URL is tried, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.client.session.route import WAIT, WAIT_MAX, Route, urls_of
from malamute.errors import InvalidName, InvalidValue


def test_urls_come_as_text_or_as_a_sequence():
    assert urls_of("tcp://a:1") == ["tcp://a:1"]
    assert urls_of("tcp://a:1, tcp://b:2,") == ["tcp://a:1", "tcp://b:2"]
    assert urls_of(("tcp://a:1", "tcp://b:2")) == ["tcp://a:1", "tcp://b:2"]
    with pytest.raises(InvalidValue):
        Route(urls_of(" , "))


def test_a_uri_of_malamute_is_the_broker_that_it_leads_to():
    assert urls_of("malamute://a/stream/x,tcp://b:2") == ["tcp://a:9999", "tcp://b:2"]
    assert urls_of(["MALAMUTE://[::1]:7/"]) == ["tcp://[::1]:7"]
    with pytest.raises(InvalidName):
        urls_of("malamute://a/topic/x")


def test_the_urls_are_tried_in_order_and_after_the_last_one_comes_a_wait():
    route = Route(["a", "b"])
    tries = [route.next(1.0) for _ in range(7)]
    assert [url for url, _ in tries] == ["a", "b"] * 3 + ["a"]
    assert [wait for _, wait in tries] == [0, 0, WAIT, 0, 2 * WAIT, 0, 4 * WAIT]


def test_after_a_connection_it_begins_with_the_first_one_again_and_a_short_wait():
    route = Route(["a", "b"])
    for _ in range(9):
        route.next(0.5)
    route.arrived("b", ())
    assert route.next(1.0) == ("a", WAIT)
    assert route.next(1.0) == ("b", 0.0)


def tried(route, count):
    return [route.next(1.0)[0] for _ in range(count)]


def test_urls_that_a_broker_names_are_tried_behind_those_given_and_only_as_long_as_it_names_them():
    route = Route(["b", "a"])
    route.arrived("b", ["a", "c", "d"])
    assert tried(route, 5) == ["b", "a", "c", "d", "b"]
    route.arrived("a", ["a", "c"])
    assert tried(route, 4) == ["b", "a", "c", "b"]
    assert route.forget("c")
    assert not route.forget("a")
    assert sorted(tried(route, 4)[2:]) == ["a", "b"]
    assert str(route) == "b, a"


def test_the_primary_that_a_standby_names_is_next_if_it_is_known_or_has_the_key():
    for route, named, expected in [
        (Route(["a", "b", "c"]), ["x", "c"], ("c", 0.0)),
        (Route(["a", "b", "c"]), ["x"], ("b", 0.0)),
        (Route(["a"]), ["x"], ("a", WAIT)),
        (Route(["a"], proved=True), ["x", "a"], ("x", 0.0)),
        (Route(["a", "b"]), [], ("b", 0.0)),
    ]:
        route.next(1.0)
        route.moved(named)
        assert route.next(1.0) == expected


def test_two_brokers_that_name_each_other_are_asked_once_a_round():
    route = Route(["a", "b"])
    waits = []
    for _ in range(12):
        url, wait = route.next(1.0)
        waits.append(wait)
        route.moved(["b" if url == "a" else "a"])
    assert [wait for wait in waits if wait] == [WAIT, 2 * WAIT, 4 * WAIT]


def test_a_url_without_an_answer_is_tried_last_until_there_is_one():
    route = Route(["a", "b", "c"])
    assert tried(route, 1) == ["a"]
    route.silent("a")
    assert tried(route, 5) == ["b", "c", "b", "c", "a"]
    route.arrived("b", ())
    assert tried(route, 3) == ["b", "c", "a"]
    route.arrived("a", ())
    assert tried(route, 3) == ["a", "b", "c"]


def test_a_lost_broker_of_a_pair_is_tried_last_and_another_one_first():
    route = Route(["a", "b"])
    route.arrived("a", ["a", "b"])
    route.lost("a")
    assert tried(route, 2) == ["b", "a"]
    route.arrived("b", ())
    route.lost("b")
    assert tried(route, 2) == ["b", "a"]


@given(st.integers(1, 5), st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_waits_grow_to_a_limit_and_are_spread_over_half_of_them(count, chances):
    route = Route([str(n) for n in range(count)])
    whole = 0.0
    for number, chance in enumerate(chances):
        url, wait = route.next(chance)
        assert url == str(number % count)
        if number % count:
            assert wait == 0
        elif number:
            whole = min(WAIT_MAX, 2 * whole or WAIT)
            assert whole / 2 <= wait <= whole


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("example.org", "tcp://example.org:9999"),
        ("example.org:7", "tcp://example.org:7"),
        ("127.0.0.1", "tcp://127.0.0.1:9999"),
        ("[::1]", "tcp://[::1]:9999"),
        ("[::1]:7", "tcp://[::1]:7"),
        ("/run/malamute.sock", "ipc:///run/malamute.sock"),
        ("ipc://@name", "ipc://@name"),
    ],
)
def test_an_address_without_a_scheme_is_one_of_tcp_or_of_the_file_system(text, url):
    assert urls_of(text) == [url]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "HTTPS://example.org"])
def test_a_gateway_is_no_broker(url):
    with pytest.raises(InvalidValue, match="a gateway speaks HTTP"):
        urls_of(url)
