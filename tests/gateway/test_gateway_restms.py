"""RestMS: the examples of its specifications, and each type of feed, join and pipe."""

from __future__ import annotations

from email import message_from_bytes
from pathlib import Path

import pytest
from restms_client import DOMAIN, FORMS, RestClient, content_of, message
from running_gateway import WAIT_SECONDS, gateway_before

import malamute
from malamute.gateway.restms.documents import RESTMS_XML, Element, read
from malamute.testing import Broker

NEWS = (
    ("rec.pets.dogs", "Montreal: Canine Championship series opens"),
    ("rec.cars", "The oil shock: does it affect you?"),
    ("rec.pets.dogs", "Steroids: the ugly truth from Montreal"),
    ("rec.pets.cats", "Cat vs. dog: facts or fictions?"),
    ("rec.pets.dogs", "Montreal in chaos: winner is a cat!"),
    ("rec.cars", "Red, white, or blue: what it says about you"),
    ("rec.cars", "Parking - who, when, where, why: a new survey"),
    ("rec.pets.cats", "Superiority: it comes naturally"),
)
"""The example of 4/AMQP9."""

THREE_MESSAGES = b"""
<restms>
  <message address="address.multi.1" message_id="ID1">
    <header name="serial-number" value="0001" />
    <content>It's too cold</content>
  </message>
  <message address="address.multi.2" message_id="ID2">
    <header name="serial-number" value="0002" />
    <content>It's too hot</content>
  </message>
  <message address="address.multi.3" message_id="ID3">
    <header name="message_id" value="ID3" />
    <header name="serial-number" value="0003" />
    <content>It's just right!</content>
  </message>
</restms>
"""


@pytest.mark.parametrize("media", FORMS)
def test_the_news_example_of_restms_over_http(rest: RestClient, media: str) -> None:
    rest.media = media
    feed = rest.feed(f"news {media}", "topic")
    pipe = rest.pipe()
    rest.join(pipe, feed, "rec.pets.*")
    rest.post(feed, *(message(address, title) for address, title in NEWS))
    found = rest.take(pipe, 5)
    assert [(m.get("address"), content_of(m)) for m in found] == [
        (address, title) for address, title in NEWS if address.startswith("rec.pets.")
    ]


def test_zn10_three_messages_of_one_post_arrive_in_order(rest: RestClient) -> None:
    feed, pipe = rest.feed("three"), rest.pipe()
    for address in ("address.multi.1", "address.multi.2", "address.multi.3"):
        rest.join(pipe, feed, address)
    # The default feed cannot be joined, so messages of the example there reach no pipe.
    for url, counts in (("/restms/feed/default", ["0", "0", "0"]), (feed, ["1", "1", "1"])):
        answer = rest.http.post(url, content=THREE_MESSAGES)
        assert answer.status_code == 200
        assert [found.get("count") for found in rest.all(answer)] == counts
    found = rest.take(pipe, 3)
    assert [(m.get("address"), m.get("message_id"), content_of(m)) for m in found] == [
        ("address.multi.1", "ID1", "It's too cold"),
        ("address.multi.2", "ID2", "It's too hot"),
        ("address.multi.3", "ID3", "It's just right!"),
    ]
    headers = [[(h.get("name"), h.get("value")) for h in m.each("header")] for m in found]
    assert headers == [
        [("serial-number", "0001")],
        [("serial-number", "0002")],
        [("message_id", "ID3"), ("serial-number", "0003")],
    ]


def test_the_request_and_response_example_of_3_defaults(rest: RestClient) -> None:
    feed, service, requestor = rest.feed("services"), rest.pipe(), rest.pipe()
    rest.join(service, feed, "weather info")
    name = rest.get(requestor).get("name")
    assert rest.post(feed, message("weather info", reply_to=name)) == ["1"]
    assert rest.post(feed, message("somebody else")) == ["0"]
    [request] = rest.take(service)
    # A delivered message has neither its feed (ZN5) nor anybody else's name.
    assert (request.get("reply_to"), request.get("feed")) == (name, "")
    assert rest.post("/restms/feed/default", message(request.get("reply_to"), "rain")) == ["1"]
    [response] = rest.take(requestor)
    assert content_of(response) == "rain"


def test_the_fortune_example_of_4_amqp9_and_a_service_that_leaves_with_its_last_join(
    rest: RestClient,
) -> None:
    feed = rest.feed("fortune", "service")
    service, client = rest.pipe(), rest.pipe()
    join = rest.join(service, feed)
    other = rest.join(client, feed)
    rest.send("DELETE", other)
    rest.post(feed, message("", "tell me", reply_to=rest.get(client).get("name")))
    [request] = rest.take(service)
    rest.post("/restms/feed/default", message(request.get("reply_to"), "good luck"))
    assert content_of(rest.take(client)[0]) == "good luck"
    rest.get(feed)
    rest.send("DELETE", join)
    rest.send("GET", feed, status=404)


POSTS = (("a.b", {"x": "1", "y": "2"}), ("a.b.c", {"x": "1"}), ("a", {"y": "3"}))


@pytest.mark.parametrize(
    ("kind", "join_kind", "address", "headers", "expected"),
    [
        ("", "", "a.b", {}, ["a.b"]),
        ("direct", "", "a", {}, ["a"]),
        ("fanout", "", "", {}, ["a.b", "a.b.c", "a"]),
        ("topic", "", "a.#", {}, ["a.b", "a.b.c", "a"]),
        # In RestMS a star stands for one part, always: E1 is of the streams of Malamute.
        ("topic", "", "a.*", {}, ["a.b"]),
        ("headers", "", "", {"x": "1"}, ["a.b", "a.b.c"]),
        ("headers", "", "", {"x": "1", "y": "2"}, ["a.b"]),
        ("headers", "", "", {"y": "3", "x": "1", "x-match": "any"}, ["a.b", "a.b.c", "a"]),
        ("headers", "", "", {"y": ""}, ["a.b", "a"]),
        ("fanout", "regexp", "c$", {}, ["a.b.c"]),
        ("fanout", "prefix", "a.", {}, ["a.b", "a.b.c"]),
    ],
)
def test_zn3_each_type_of_feed_and_join_routes_as_it_says(
    rest: RestClient, kind: str, join_kind: str, address: str, headers: dict[str, str], expected: list[str]
) -> None:
    feed, pipe = rest.feed("", kind), rest.pipe()
    rest.join(pipe, feed, address, join_kind, **headers)
    rest.join(pipe, feed, "end", "regexp")
    # The message matches both joins, and comes once (E28).
    rest.join(pipe, feed, "end", "prefix")
    counts = rest.post(feed, *(message(name, headers=given) for name, given in POSTS), message("end"))
    assert counts == (["1", "0", "0", "2"] if not kind else [])
    found = rest.addresses(pipe, len(expected) + 1)
    assert found == [*expected, "end"]
    rest.send("DELETE", feed)


def test_zn17_headers_regular_expressions_and_places_select_from_one_feed(
    rest: RestClient, restms_broker: Broker
) -> None:
    feed = rest.feed("traffic", "headers")
    wanted: list[tuple[str, str, dict[str, str], list[str]]] = [
        ("geo", '{"circle": [59.91, 10.75, 50]}', {}, ["ship.a", "ship.n"]),
        ("geo", '{"box": [57, 4, 72, 32]}', {}, ["ship.a", "ship.b", "ship.n"]),
        ("regexp", "^ship[.][ab]", {}, ["ship.a", "ship.b"]),
        ("", "", {"lat": "59.9", "flag": "NO"}, ["ship.a"]),
    ]
    pipes = [rest.pipe() for _ in wanted]
    for pipe, (kind, address, headers, _) in zip(pipes, wanted, strict=True):
        rest.join(pipe, feed, address, kind, **headers)
        rest.join(pipe, feed, "end", "prefix")
    for name, lat, lon in (("a", "59.9", "10.740"), ("b", "60", "5"), ("c", "-18", "-174"), ("d", "x", "")):
        rest.post(feed, message(f"ship.{name}", headers={"lat": lat, "lon": lon, "flag": "NO"}))
    with malamute.connect(restms_broker.url, timeout=WAIT_SECONDS) as native:
        native.publish("traffic", "ship.n", b"", {"lat": 59.9, "lon": 10.7}, assurance="stored")
    rest.post(feed, message("end"))
    first = {header.get("name"): header.get("value") for header in rest.next(pipes[0]).each("header")}
    assert first == {"lat": "59.9", "lon": "10.74", "flag": "NO"}
    for pipe, (_, _, _, expected) in zip(pipes, wanted, strict=True):
        assert rest.addresses(pipe, len(expected) + 1) == [*expected, "end"]


def test_a_rotator_gives_each_message_to_one_pipe_and_ondemand_has_one_at_a_time(rest: RestClient) -> None:
    feed = rest.feed("jobs", "rotator")
    rest.post(feed, message("before"))
    pipes = [rest.pipe("ondemand") for _ in range(2)]
    for pipe in pipes:
        rest.join(pipe, feed)
    rest.join(pipes[0], rest.feed("no jobs", "fanout"), status=403)
    rest.post(feed, *(message(str(n)) for n in range(3)))
    first, second = (rest.next(pipe) for pipe in pipes)
    assert first.get("address") == "before"
    # Nothing more comes before it is deleted.
    assert [m.get("async") for m in rest.get(pipes[0]).each("message")] == ["", "1"]
    rest.send("DELETE", first.get("href"))
    third = rest.next(pipes[0])
    rest.send("DELETE", third.get("href"))
    found = [second, third, rest.next(pipes[0])]
    assert sorted(m.get("address") for m in found) == ["0", "1", "2"]
    # A pipe that is deleted gives back what it held.
    rest.send("DELETE", pipes[1])
    rest.send("DELETE", found[2].get("href"))
    assert rest.addresses(pipes[0], 1) == [second.get("address")]


def test_zn15_a_loopback_feed_returns_a_clients_own_posts(rest: RestClient, restms_broker: Broker) -> None:
    feed, pipe = rest.feed("loop", "loopback"), rest.pipe()
    rest.join(pipe, feed)
    with malamute.connect(restms_broker.url, timeout=WAIT_SECONDS) as other:
        for user in ("eve", ""):
            other.publish("loop", "of somebody else", b"", {"restms.user_id": user}, assurance="stored")
    rest.post(feed, message("mine"))
    assert rest.addresses(pipe, 1) == ["mine"]


def test_zn15_a_pipe_of_the_type_stream_is_an_answer_without_end(rest: RestClient) -> None:
    feed, pipe = rest.feed("flow", "fanout"), rest.pipe("stream")
    rest.join(pipe, feed)
    rest.post(feed, message("1", "one"))
    headers = {"accept": "multipart/mixed"}
    with rest.http.stream("GET", pipe, headers=headers) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        chunks = answer.iter_bytes()
        flow = b""
        while b"one" not in flow:
            flow += next(chunks)
        rest.post(feed, message("2", "two"))
        while b"</restms>" not in flow.partition(b"two")[2]:
            flow += next(chunks)
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + flow + b"\r\n--restms-message--").get_payload()
    payloads = [part.get_payload(decode=True) for part in parts]  # type: ignore[union-attr]
    found = [read(bytes(payload), RESTMS_XML).children[0] for payload in payloads[:2]]  # type: ignore[arg-type]
    assert [m.get("address") for m in found] == ["1", "2"]
    # A written message is deleted.
    assert "one" not in rest.http.get(pipe).text
    rest.send("GET", rest.pipe(), status=400, accept="multipart/mixed")


def test_zn4_profiles_are_listed_and_read_only(rest: RestClient) -> None:
    domain = rest.get(DOMAIN)
    profiles = [profile.get("name") for profile in domain.each("profile")]
    assert profiles[:2] == ["3/Defaults", "4/AMQP9"]
    [default] = [feed for feed in domain.each("feed") if feed.get("name") == "default"]
    assert default.get("href").endswith("/restms/feed/default")
    for profile in domain.each("profile"):
        url = f"/restms/profile/{profile.get('name').replace('/', '%2F')}"
        assert rest.get(url).get("name") == profile.get("name")
        rest.send("PUT", url, status=403)
        rest.send("DELETE", url, status=403)
    rest.send("DELETE", DOMAIN, status=403)
    rest.send("GET", "/restms/domain/other", status=404)
    rest.send("GET", "/restms/profile/other", status=404)


def test_zn4_a_plug_in_adds_a_profile_by_its_entry_point(
    restms_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an installed distribution has one: neither the gateway nor its settings name it."""
    (tmp_path / "backwards_profile.py").write_text(BACKWARDS, encoding="utf-8")
    metadata = tmp_path / "backwards_profile-1.0.dist-info"
    metadata.mkdir()
    named = "Metadata-Version: 2.1\nName: backwards-profile\nVersion: 1.0\n"
    (metadata / "METADATA").write_text(named, encoding="utf-8")
    points = "[malamute.restms]\nbackwards = backwards_profile:PROFILE\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with gateway_before(restms_broker) as gateway, gateway.client() as http:
        rest = RestClient(http)
        names = [profile.get("name") for profile in rest.get(DOMAIN).each("profile")]
        assert names[:2] == ["3/Defaults", "4/AMQP9"]
        assert names[-1] == "test/Backwards"
        url = "/restms/profile/test%2FBackwards"
        assert rest.get(url).get("name") == "test/Backwards"
        rest.send("PUT", url, status=403)
        rest.send("DELETE", url, status=403)
        feed, pipe = rest.feed("", "backwards"), rest.pipe()
        rest.join(pipe, feed, "cba")
        rest.post(feed, message("cba"), message("abc"))
        assert rest.addresses(pipe, 1) == ["abc"]
        rest.send("DELETE", feed)
    # Without the distribution there is no such type.
    monkeypatch.undo()
    with gateway_before(restms_broker) as gateway, gateway.client() as http:
        element = Element("feed", {"name": "other", "type": "backwards"})
        RestClient(http).send("POST", DOMAIN, element, status=400)


BACKWARDS = """
from malamute.gateway.restms.feed_types import FeedType, Profile

PROFILE = Profile(
    "test/Backwards",
    "http://example.com",
    feeds={"backwards": FeedType(lambda wanted: ("exact", wanted.address[::-1]))},
)
"""


def test_zn6_what_the_broker_has_is_a_feed_that_is_locked(rest: RestClient, restms_broker: Broker) -> None:
    with malamute.connect(restms_broker.url, timeout=WAIT_SECONDS) as native:
        native.publish("native stream", "before", b"", assurance="stored")
        work = native.work("native service")
        feeds = {feed.get("name"): feed for feed in rest.get(DOMAIN).each("feed")}
        stream, service = feeds["native stream"], feeds["native service"]
        assert (stream.get("type"), service.get("type")) == ("topic", "rotator")
        assert not [name for name in feeds if name.startswith(("restms", "$"))]
        for feed in (stream, service):
            url = feed.get("href")
            rest.send("PUT", url, Element("feed", {"title": "mine"}), status=403)
            rest.send("DELETE", url, status=403)
        assert rest.feed("native stream", "topic", status=200) == stream.get("href")
        rest.feed("native stream", "fanout", status=400)
        pipe = rest.pipe()
        rest.join(pipe, stream.get("href"), "a.*")
        native.publish("native stream", "a.b", b"1", {"n": 1}, assurance="stored")
        [found] = rest.take(pipe)
        assert [(h.get("name"), h.get("value")) for h in found.each("header")] == [("n", "1")]
        rest.post(service.get("href"), message("do it", "now"))
        request = work.receive(WAIT_SECONDS)
        assert (request.subject, request.body) == ("do it", b"now")
        request.ack()
        # A native request gets to a pipe, too.
        rest.join(pipe, service.get("href"))
        work.cancel()
        native.request("native service", "by hand", b"")
        assert rest.addresses(pipe, 1) == ["by hand"]
        # Who reads it replies by the default feed, as to any request.
        replies = native.request("native service", "with a reply", b"")
        request = rest.next(pipe)
        reply = message(request.get("reply_to"), "done", headers={"n": "1"})
        other = message("nobody")
        assert rest.post("/restms/feed/default", reply, other) == ["1", "0"]
        [found] = replies
        assert (found.body, found.final, found.headers["n"]) == (b"done", True, "1")
        # The request is answered: a second reply is to nobody, and there is nothing to delete any more.
        assert rest.post("/restms/feed/default", reply) == ["0"]
        assert [m.get("async") for m in rest.get(pipe).each("message")] == ["1"]
        rest.send("DELETE", request.get("href"))


def test_zn12_who_has_posted_is_not_for_the_poster_to_say(rest: RestClient) -> None:
    feed, pipe = rest.feed("who", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    forged = {"app_id": "bank", "user_id": "root", "sender_id": "root", "priority": "9"}
    rest.post(feed, message("a", **forged))
    [found] = rest.take(pipe)
    assert [found.get(name) for name in forged] == ["", "", "", "9"]
    rest.send("POST", feed, message("a", headers={"restms.user_id": "root"}), status=400)


def test_zn14_a_feed_with_a_password_takes_no_post_without_it(rest: RestClient) -> None:
    feed, pipe = rest.feed("secret", "fanout", password="swordfish"), rest.pipe()
    rest.join(pipe, feed)
    assert "swordfish" not in rest.http.get(feed).text
    for headers in ({}, {"restms_password": "wrong"}):
        rest.send("POST", feed, message("refused"), status=403, **headers)
    rest.post(feed, message("taken"), restms_password="swordfish")
    assert rest.addresses(pipe, 1) == ["taken"]


def test_zn1_types_are_empty_and_the_default_join_is_the_servers(rest: RestClient) -> None:
    pipe = rest.send("POST", DOMAIN, Element("pipe"), status=201).headers["location"]
    feed = rest.send("POST", DOMAIN, Element("feed", {"name": "plain"}), status=201).headers["location"]
    document = rest.get(pipe)
    [default] = document.each("join")
    assert (document.get("type"), rest.get(feed).get("type"), default.get("type")) == ("", "", "")
    assert default.get("address") == document.get("name")
    assert default.get("feed").endswith("/restms/feed/default")
    rest.send("DELETE", default.get("href"), status=403)
    rest.join(pipe, default.get("feed"), "x", status=403)
    assert rest.get(rest.join(pipe, feed, "x")).get("address") == "x"
