"""Mercure's hub: updates are durable, subscribers get theirs once, and rules of the broker say who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from running_gateway import RunningGateway, gateway_before
from secured_gateway import secured_gateway
from token_issuer import SigningIssuer

import malamute
from malamute.client.session.message import Message
from malamute.gateway.mercure import FIELDS_MAX, RETRY_MS_MAX, TOPICS_MAX, UpdateWriter
from malamute.protocol.batch import Columns, pack_record
from malamute.protocol.limits import CRITERIA_MAX, SUBJECT_BYTES_MAX
from malamute.testing import Broker

HUB = "/.well-known/mercure"
BOOK = "https://example.com/books/1"
BOOKS = "https://example.com/books/{id}"

Event = dict[str, str]


def _publish(http: httpx.Client, topic: str | list[str], data: str = "", **fields: Any) -> str:
    answer = http.post(HUB, data={"topic": topic, "data": data, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


def _events(answer: httpx.Response) -> Iterator[Event]:
    """The events with data as a browser reads them; `id` is the one that it has then."""
    event: Event = {}
    last = ""
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            last = value if name == "id" else last
            event[name] = f"{event[name]}\n{value}" if name == "data" and name in event else value
        else:
            if "data" in event:
                yield {**event, "id": last}
            event = {}


@contextmanager
def _following(http: httpx.Client, *topics: str, **options: Any) -> Iterator[tuple[Any, Iterator[Event]]]:
    params = {"topic": topics, **options.pop("params", {})}
    with http.stream("GET", HUB, params=params, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.headers, _events(answer)


def _data(events: Iterator[Event], count: int) -> list[str]:
    return [event["data"] for event in islice(events, count)]


STORE = "11" * 16


def _number(ident: str) -> int:
    """The sequence of an id, `#N@STORE`."""
    return int(ident.removeprefix("#").partition("@")[0])


def test_two_subscribers_get_what_their_selectors_match(http: httpx.Client) -> None:
    with (
        _following(http, BOOKS) as (_, books),
        _following(http, "news", "https://example.com/users/7") as (_, others),
        _following(http, "*") as (_, everything),
    ):
        ids = [
            _publish(http, topic, topic)
            for topic in (BOOK, "news", "https://example.com/books/1/pages", "https://example.com/books/2")
        ]
        _publish(http, "https://example.com/users/7", "end")
        assert [(e["id"], e["data"]) for e in islice(books, 2)] == [
            (ids[0], BOOK),
            (ids[3], "https://example.com/books/2"),
        ]
        assert _data(others, 2) == ["news", "end"]
        assert len(_data(everything, 5)) == 5


def test_an_update_has_the_id_that_its_publisher_was_answered(http: httpx.Client) -> None:
    with _following(http, "a") as (_, events):
        update = _publish(http, "a", "one\r\ntwo\nthree", id="urn:uuid:1", type="edited", retry="0")
        assert next(events) == {"id": update, "event": "edited", "retry": "0", "data": "one\ntwo\nthree"}
        assert _number(update) == 1
        _publish(http, "a")
        assert next(events) == {"id": update.replace("#1", "#2"), "data": ""}


def test_an_update_that_is_repeated_is_published_once(http: httpx.Client) -> None:
    first = _publish(http, "a", "x", id="urn:uuid:1")
    assert _publish(http, "a", "x", id="urn:uuid:1") == first
    assert _number(first) == 1
    assert _number(_publish(http, "a", "other", id="urn:uuid:1")) == 2
    assert [_number(_publish(http, "a", "x")) for _ in range(2)] == [3, 4]
    key = {"idempotency-key": "k"}
    form = {"topic": "a", "data": "y"}
    assert [_number(http.post(HUB, data=form, headers=key).text) for _ in range(2)] == [5, 5]
    refused = http.post(HUB, data={"topic": "a", "data": "z"}, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (422, 907)


def test_an_update_of_many_topics_comes_once_whichever_of_them_match(http: httpx.Client) -> None:
    with _following(http, "a", "b") as (_, both), _following(http, "b") as (_, one):
        first = _publish(http, ["a", "b", "a", "c"], "x")
        second = _publish(http, ["b", "a"], "y")
        assert (_number(first), _number(second)) == (1, 4)
        for events in (both, one):
            assert [(e["id"], e["data"]) for e in islice(events, 2)] == [(first, "x"), (second, "y")]
    # Nothing of an update that was had is sent again.
    with _following(http, "a", "b", headers={"last-event-id": first}) as (_, events):
        assert _data(events, 1) == ["y"]


def test_updates_are_messages_of_the_stream_that_any_client_can_read(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    with start(mercure_stream="site").client() as http:
        _publish(http, [BOOK, "b"], "ä", private="")
    with client.subscribe("site", start="first") as messages:
        found = [(m.subject, m.body, m.headers) for m in (messages.receive(), messages.receive())]
    assert found == [
        (BOOK, "ä".encode(), {"private": None, "topic1": BOOK, "topic2": "b"}),
        ("b", "ä".encode(), {"private": None, "topic1": BOOK, "topic2": "b", "alternate": 1}),
    ]


def test_what_a_client_publishes_is_an_update(http: httpx.Client, client: malamute.Client) -> None:
    with _following(http, "*") as (_, events):
        client.publish_batch(
            "mercure", ["a", "b"], [b"\nx\n", b"y"], [{"type": "a\nb", "retry": "1"}, {"alternate": 2.5}]
        )
        found = [(_number(event["id"]), event["data"]) for event in islice(events, 2)]
        assert found == [(1, "\nx\n"), (2, "y")]


def test_a_header_of_a_stranger_hides_no_update_but_its_own() -> None:
    writer = UpdateWriter(None, 4, STORE)
    found = []
    for sequence, alternate in ((5, 1), (6, 1), (7, 99), (8, -1), (9, 100), (10, True)):
        message = Message(sequence, 0, "", "s", pack_record({"alternate": alternate}, b"x"))
        found.append(writer.event(message).partition(b"\n")[0])
    assert found[0] == b""
    assert [_number(line.decode().removeprefix("id: ")) for line in found[1:]] == [5, -92, 8, 9, 10]


def test_a_message_that_cannot_be_read_is_a_gap_of_the_hub() -> None:
    writer = UpdateWriter(None, 0, STORE)
    written = b"".join(writer.parts(Columns([1], 0, "", ["s"], [b"\xc1"])))
    assert written.startswith(f"event: malamute-gap\nid: #1@{STORE}\n".encode())


def test_a_browser_that_comes_again_gets_what_it_missed(http: httpx.Client) -> None:
    ids = [_publish(http, "a", str(number)) for number in range(1, 5)]
    with _following(http, "a", headers={"last-event-id": ids[1]}) as (headers, events):
        assert (headers["last-event-id"], _data(events, 2)) == (ids[1], ["3", "4"])
    # The address is the one that the page was opened with; the header is newer.
    options: dict[str, Any] = {"params": {"lastEventID": ids[0]}}
    with _following(http, "a", headers={"last-event-id": ids[2]}, **options) as (_, events):
        assert _data(events, 1) == ["4"]
    options = {"params": {"lastEventID": ids[0]}}
    with _following(http, "a", **options) as (_, events):
        assert _data(events, 1) == ["2"]


@pytest.mark.parametrize("name", ["lastEventID", "lastEventId", "Last-Event-ID", "Last-Event-Id"])
def test_libraries_spell_the_parameter_otherwise_and_add_others(http: httpx.Client, name: str) -> None:
    ids = [_publish(http, "a", str(number)) for number in range(1, 4)]
    with _following(http, "a", params={name: ids[0], "cache-buster": "7"}) as (headers, events):
        assert (headers["last-event-id"], _data(events, 2)) == (ids[0], ["2", "3"])
    # The page has asked for everything, and the library goes on from where it was.
    with _following(http, "a", params={"lastEventID": "earliest"} | {name: ids[1]}) as (headers, events):
        assert (headers["last-event-id"], _data(events, 1)) == (ids[1], ["3"])


def test_a_token_in_the_address_is_refused(http: httpx.Client) -> None:
    answer = http.get(HUB, params={"topic": "a", "authorization": "none.of.ours"})
    assert (answer.status_code, answer.json()["code"]) == (400, 416)


def test_a_browser_that_leaves_before_its_first_update_misses_nothing(http: httpx.Client) -> None:
    _publish(http, "a", "1")
    with http.stream("GET", HUB, params={"topic": "a"}) as answer:
        position = next(line for line in answer.iter_lines() if line.startswith("id: "))
    _publish(http, "a", "2")
    with _following(http, "a", headers={"last-event-id": position.removeprefix("id: ")}) as (_, events):
        assert _data(events, 1) == ["2"]


def test_all_that_the_hub_has_can_be_asked_for(http: httpx.Client) -> None:
    _publish(http, "a", "1")
    _publish(http, "b", "2")
    with _following(http, "*", params={"lastEventID": "earliest"}) as (headers, events):
        assert (headers["last-event-id"], _data(events, 2)) == ("earliest", ["1", "2"])


@pytest.mark.parametrize("unknown", ["urn:uuid:1", "#", "#x", "#99", "#9999999999999999999", "1", "#-1"])
def test_an_id_that_the_hub_does_not_know_is_told_from_the_answer(http: httpx.Client, unknown: str) -> None:
    last = _publish(http, "a", "1")
    with _following(http, "a", headers={"last-event-id": unknown}) as (headers, events):
        assert headers["last-event-id"] == last
        _publish(http, "a", "2")
        assert _data(events, 1) == ["2"]


def test_a_browser_loses_nothing_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    with (
        Broker(tmp_path) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
    ):
        with _following(http, BOOKS) as (_, events):
            _publish(http, BOOK, "1")
            last = next(events)["id"]
        _publish(http, BOOK, "2")
        broker.restart()
        _publish(http, BOOK, "3")
        with _following(http, BOOKS, headers={"last-event-id": last}) as (_, events):
            assert _data(events, 2) == ["2", "3"]
            broker.restart()
            _publish(http, BOOK, "4")
            assert _data(events, 1) == ["4"]


def test_what_the_broker_has_no_more_is_an_event_of_the_hub_itself(
    http: httpx.Client, client: malamute.Client
) -> None:
    first = _publish(http, "a", "1")
    _publish(http, "a", "2")
    client.change(malamute.protocol.admin.StreamPurge(stream="mercure"))
    last = _publish(http, "a", "3")
    with _following(http, "a", headers={"last-event-id": first}) as (_, events):
        gap, update = islice(events, 2)
        assert (gap["event"], gap["id"]) == ("malamute-gap", first.replace("#1", "#2"))
        assert (update["id"], update["data"]) == (last, "3")


def test_every_answer_of_the_hub_says_where_it_is(http: httpx.Client) -> None:
    link = f'<{HUB}>; rel="mercure"'
    assert http.post(HUB, data={"topic": "a"}).headers["link"] == link
    with _following(http, "a") as (headers, _):
        assert headers["link"] == link


@pytest.mark.parametrize(
    "form",
    [
        "",
        "data=x",
        "topic=",
        "topic=a%0Ab",
        "topic=%C2%80",
        f"topic={'a' * (SUBJECT_BYTES_MAX + 1)}",
        urlencode({"topic": range(TOPICS_MAX + 1)}, doseq=True),
        "topic=a&data=1&data=2",
        "topic=a&id=%231",
        "topic=a&id=a%00",
        "topic=a&id=a%0A",
        "topic=a&type=a%0Adata:",
        "topic=a&type=a%0D",
        "topic=a&retry=-1",
        "topic=a&retry=1.5",
        "topic=a&retry=%D9%A1",
        f"topic=a&retry={RETRY_MS_MAX + 1}",
        "topic=a&target=b",
    ],
)
def test_a_form_that_says_no_update_is_refused(http: httpx.Client, form: str) -> None:
    answer = http.post(HUB, content=form, headers={"content-type": "application/x-www-form-urlencoded"})
    assert (answer.status_code, answer.json()["code"]) == (400, 416)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_form_may_have_all_that_the_limits_allow(http: httpx.Client) -> None:
    topics = [f"{number:0{SUBJECT_BYTES_MAX}}" for number in range(TOPICS_MAX)]
    assert _number(_publish(http, topics, retry=RETRY_MS_MAX, private="")) == 1
    assert _number(_publish(http, ["a"] * (FIELDS_MAX - 1))) == TOPICS_MAX + 1


@pytest.mark.parametrize(
    ("form", "content_type", "expected"),
    [
        ("topic=%FF", "application/x-www-form-urlencoded", (400, 400)),
        (b"topic=\xff", "application/x-www-form-urlencoded; charset=utf-8", (400, 400)),
        ("&".join(["topic=a"] * (FIELDS_MAX + 1)), "application/x-www-form-urlencoded", (413, 413)),
        ('{"topic": "a"}', "application/json", (415, 903)),
    ],
)
def test_a_body_that_is_no_form_is_refused(
    http: httpx.Client, form: str | bytes, content_type: str, expected: tuple[int, int]
) -> None:
    answer = http.post(HUB, content=form, headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["code"]) == expected


def test_a_form_may_be_as_large_as_a_body_and_not_larger(start: Callable[..., RunningGateway]) -> None:
    with start(body_bytes=100).client() as http:
        assert _publish(http, "a", "x" * (100 - len("topic=a&data=")))
        assert http.post(HUB, data={"topic": "a", "data": "x" * 88}).status_code == 413


def test_the_messages_of_an_update_are_together_as_large_as_a_body_and_not_larger(
    start: Callable[..., RunningGateway],
) -> None:
    with start(body_bytes=100).client() as http:
        assert _publish(http, ["a", "b"], "x" * 50)
        answer = http.post(HUB, data={"topic": ["a", "b"], "data": "x" * 51})
        assert (answer.status_code, answer.json()["code"]) == (413, 413)


def test_a_subscription_needs_a_topic_and_may_have_so_many(http: httpx.Client) -> None:
    answer = http.get(HUB)
    assert (answer.status_code, answer.json()["code"]) == (400, 416)
    with _following(http, *map(str, range(CRITERIA_MAX))) as (_, events):
        _publish(http, "99", "x")
        assert _data(events, 1) == ["x"]
    answer = http.get(HUB, params={"topic": [*map(str, range(CRITERIA_MAX + 1))]})
    assert (answer.status_code, answer.json()["code"]) == (413, 413)


def test_a_page_may_have_as_many_templates_as_a_selector_has_room_for(
    http: httpx.Client,
) -> None:
    topics = [f"/{number}/{{id}}" for number in range(32)]
    with _following(http, *topics[1:]) as (_, events):
        _publish(http, "/31/x", "x")
        assert _data(events, 1) == ["x"]
    answer = http.get(HUB, params={"topic": topics})
    assert (answer.status_code, answer.json()["code"]) == (400, 415)


def test_many_pages_may_have_many_templates(gateway: RunningGateway, http: httpx.Client) -> None:
    followers = gateway.state.settings.session_followers
    with ExitStack() as stack:
        for page in range(followers):
            topics = [f"/{page}/{number}/{{id}}" for number in range(3)]
            stack.enter_context(_following(http, *topics))


def test_who_does_not_say_who_it_is_gets_no_private_update(http: httpx.Client) -> None:
    with _following(http, "*") as (_, events):
        _publish(http, "a", "secret", private="on")
        _publish(http, "a", "public")
        assert _data(events, 1) == ["public"]


BOB, ANN = ("bob", "secret"), ("ann", "geheim")
RULES = (
    "create,publish stream/mercure",
    "subscribe stream/mercure where not exists private",
    "subscribe stream/mercure where subject prefix 'https://example.com/users/{user}/'"
    " or topic2 prefix 'https://example.com/users/{user}/'",
    "deny publish stream/mercure/internal.#",
)


@pytest.fixture
def issuer(tmp_path: Path) -> SigningIssuer:
    return SigningIssuer(tmp_path)


@pytest.fixture
def secured(tmp_path: Path, issuer: SigningIssuer) -> Iterator[RunningGateway]:
    with secured_gateway(tmp_path, dict((BOB, ANN)), RULES, issuer.known) as gateway:
        yield gateway


def test_rules_of_the_broker_say_who_gets_a_private_update(secured: RunningGateway) -> None:
    with (
        secured.client(auth=BOB) as bob,
        secured.client(auth=ANN) as ann,
        _following(bob, "*") as (_, of_bob),
        _following(ann, "*") as (_, of_ann),
    ):
        _publish(bob, "https://example.com/users/ann/mail", "to ann", private="on")
        _publish(ann, ["https://example.com/users/bob/mail", "x"], "to bob", private="on")
        _publish(bob, "news", "to all")
        assert _data(of_ann, 2) == ["to ann", "to all"]
        assert _data(of_bob, 2) == ["to bob", "to all"]


def test_a_topic_that_nobody_asked_for_may_allow_a_private_update(secured: RunningGateway) -> None:
    with (
        secured.client(auth=BOB) as bob,
        secured.client(auth=ANN) as ann,
        _following(bob, BOOKS) as (_, of_bob),
        _following(ann, BOOKS) as (_, of_ann),
    ):
        _publish(bob, [BOOK, "https://example.com/users/ann/?topic=1"], "ann's", private="on")
        _publish(bob, BOOK, "to all")
        assert _data(of_ann, 2) == ["ann's", "to all"]
        assert _data(of_bob, 1) == ["to all"]


def test_an_update_is_published_under_all_of_its_topics_or_none(secured: RunningGateway) -> None:
    with secured.client(auth=BOB) as http, _following(http, "*") as (_, events):
        answer = http.post(HUB, data={"topic": ["news", "internal.plans"], "data": "x"})
        assert (answer.status_code, answer.json()["code"]) == (403, 401)
        _publish(http, "news", "y")
        assert _data(events, 1) == ["y"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_token_in_a_cookie_is_looked_at_by_the_broker(http: httpx.Client, method: str) -> None:
    request: dict[str, Any] = {"params": {"topic": "a"}} if method == "GET" else {"data": {"topic": "a"}}
    answer = http.request(method, HUB, headers={"cookie": "mercureAuthorization=none.of.ours"}, **request)
    assert (answer.status_code, answer.json()["code"]) == (401, 905)


def test_a_token_in_a_cookie_says_who_gets_a_private_update(
    secured: RunningGateway, issuer: SigningIssuer
) -> None:
    with (
        secured.client(headers={"cookie": f"mercureAuthorization={issuer.token('carl')}"}) as carl,
        secured.client(auth=BOB) as bob,
        _following(carl, "*") as (_, events),
    ):
        for user in ("ann", "carl"):
            _publish(bob, f"https://example.com/users/{user}/mail", user, private="on")
        _publish(carl, "news", "of carl")
        assert _data(events, 2) == ["carl", "of carl"]


def test_a_header_counts_before_a_cookie(secured: RunningGateway) -> None:
    with secured.client(auth=BOB, headers={"cookie": "mercureAuthorization=none.of.ours"}) as http:
        assert _number(_publish(http, "a")) == 1
    with secured.client() as http:
        answer = http.post(HUB, data={"topic": "a"})
        assert (answer.status_code, answer.json()["code"]) == (401, 905)
