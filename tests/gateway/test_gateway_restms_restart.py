"""RestMS over restarts, with several gateways, and before a broker with rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from time import time_ns

import pytest
from restms_client import DOMAIN, FORMS, RestClient, message, run_in
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before, until
from secured_gateway import secured_gateway

import malamute
from malamute.gateway.restms.definitions import LOG
from malamute.gateway.restms.documents import RESTMS_XML, Element
from malamute.protocol.admin import FeedsQuery, StreamsQuery
from malamute.testing import Broker, small_config

STORAGES = [(feed, pipe) for feed in ("disk", "memory", "ring") for pipe in ("disk", "memory")]


def test_zn16_what_is_on_disk_outlives_the_broker_and_what_is_in_memory_does_not(tmp_path: Path) -> None:
    paths: dict[tuple[str, str], tuple[str, str]] = {}
    with Broker(tmp_path) as broker:
        with gateway_before(broker) as gateway, gateway.client() as http:
            rest = RestClient(http)
            for storages in STORAGES:
                feed = rest.feed(
                    " ".join(storages),
                    "fanout",
                    storage=storages[0],
                    **({"size": "100"} if "ring" in storages else {}),
                )
                pipe = rest.pipe(storage=storages[1])
                rest.join(pipe, feed)
                rest.post(feed, message("before", " ".join(storages)))
                paths[storages] = tuple(url.removeprefix(gateway.url) for url in (feed, pipe))  # type: ignore[assignment]
        # Another gateway has all of it, as long as the broker runs.
        with gateway_before(broker) as gateway, gateway.client() as http:
            rest = RestClient(http)
            assert [rest.next(pipe).get("address") for _, pipe in paths.values()] == ["before"] * len(paths)
            [staged] = [
                rest.http.post(
                    paths["disk", "disk"][0], content=b"kept", headers={"content-type": "text/plain"}
                )
            ]
        broker.restart()
        with gateway_before(broker) as gateway, gateway.client() as http:
            rest = RestClient(http)
            for (on_feed, on_pipe), (feed, pipe) in paths.items():
                rest.send("GET", feed, status=404 if on_feed == "memory" else 200)
                rest.send("GET", pipe, status=404 if on_pipe == "memory" else 200)
                if "memory" not in (on_feed, on_pipe):
                    rest.post(feed, message("after"))
                    assert rest.addresses(pipe, 2) == ["before", "after"]
            # A message of a feed that is gone is kept in a pipe that is not.
            assert rest.addresses(paths["memory", "disk"][1], 1) == ["before"]
            path = staged.headers["location"].partition("/restms/")[2]
            assert rest.http.get(f"/restms/{path}").content == b"kept"
            names = {feed.get("name") for feed in rest.get(DOMAIN).each("feed")}
            assert names == {"default", "disk disk", "disk memory", "ring disk", "ring memory"}


def test_a_gateway_goes_on_when_its_broker_was_restarted(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, gateway_before(broker) as gateway, gateway.client() as http:
        rest = RestClient(http)
        feed, pipe, gone = rest.feed("news", "fanout"), rest.pipe(), rest.pipe(storage="memory")
        rest.join(pipe, feed)
        rest.post(feed, message("before"))
        first = rest.next(pipe)
        broker.restart()
        rest.post(feed, message("after"))
        assert rest.get(first.get("href")).get("address") == "before"
        assert rest.addresses(pipe, 2) == ["before", "after"]
        rest.send("GET", gone, status=404)


def test_two_gateways_before_a_broker_have_the_same_definitions(
    restms_broker: Broker, rest: RestClient
) -> None:
    with gateway_before(restms_broker) as gateway, gateway.client() as http:
        other = RestClient(http)
        feed = rest.feed("seen by both", "fanout", title="one")
        path = feed.partition("/restms/")[2]
        etag = other.send("GET", f"/restms/{path}").headers["etag"]
        rest.send("PUT", feed, Element("feed", {"title": "two"}))
        waited = other.get(f"/restms/{path}", when_none_match=etag, prefer="wait=60")
        assert waited.get("title") == "two"


ANN, BOB = ("ann", "orange"), ("bob", "banana")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[RunningGateway]:
    rules = [
        "create,publish,admin,subscribe stream/news.{user}",
        "publish stream/news.#",
        "publish stream/restms.default",
        "publish stream/restms.contents",
        "create,admin,offer service/restms.pipe.#",
    ]
    with secured_gateway(tmp_path, dict((ANN, BOB, ("gate", "keeper"))), rules, own="gate") as gateway:
        yield gateway


def test_a_user_has_so_much_in_restms_and_takes_nothing_of_others(secured: RunningGateway) -> None:
    with (
        RunningGateway(replace(secured.state.settings, restms_definitions=4, restms_pipes=1)) as gateway,
        gateway.client(auth=ANN) as ann,
        gateway.client(auth=BOB) as bob,
    ):
        anns, bobs = RestClient(ann), RestClient(bob)
        feed, pipe = anns.feed("news.ann", "fanout"), anns.pipe()
        # Former resources take no more room.
        anns.feed("news.ann", "fanout", status=200)
        second = anns.send("POST", DOMAIN, Element("pipe", {"type": ""}), status=429)
        assert "1 pipes are read by this user: expected at most 1" in second.text
        join = anns.join(pipe, feed)
        anns.join(pipe, feed, "a", status=429)
        anns.feed("news.ann", "topic", status=400)
        refused = ann.post(feed, content=b"x", headers={"content-type": "text/plain"})
        assert (refused.status_code, refused.json()["code"]) == (429, 429)
        anns.send("DELETE", join)
        assert ann.post(feed, content=b"x", headers={"content-type": "text/plain"}).status_code == 201
        bobs.pipe()


def test_old_definitions_are_published_again_before_their_stream_forgets_them(tmp_path: Path) -> None:
    async def refresh(gateway: RunningGateway) -> None:
        async with gateway.state.restms.change():
            await gateway.state.restms.registry.refresh(time_ns())

    with Broker(tmp_path) as broker:
        with gateway_before(broker) as gateway, gateway.client() as http:
            rest = RestClient(http)
            feed, pipe, gone = rest.feed("old", "fanout"), rest.pipe(), rest.feed("gone")
            rest.join(pipe, feed)
            rest.send("DELETE", gone)
            before = rest.send("GET", feed)
            with malamute.connect(broker.url, timeout=WAIT_SECONDS) as native:
                [last] = [row.last for row in native.query(StreamsQuery()) if row.name == LOG]
                run_in(gateway, refresh(gateway))
                with native.subscribe(LOG, start=f"seq:{last + 1}") as log:
                    subjects = [log.receive(WAIT_SECONDS).subject for _ in range(4)]
            assert sorted(subject.partition(".")[0] for subject in subjects) == [
                "feed",
                "join",
                "join",
                "pipe",
            ]
        # The feed was not changed by that.
        with gateway_before(broker) as gateway, gateway.client() as http:
            after = http.get("/restms/feed/old")
            assert after.headers["last-modified"] == before.headers["last-modified"]


def test_a_reader_that_nobody_uses_gives_back_what_it_holds(
    restms_gateway: RunningGateway, rest: RestClient
) -> None:
    feed, pipes = rest.feed("idle", "rotator"), [rest.pipe() for _ in range(2)]
    rest.join(pipes[0], feed)
    rest.post(feed, message("a"))
    held = rest.next(pipes[0])
    run_in(restms_gateway, restms_gateway.state.restms.readers.drop_idle(inf))
    rest.join(pipes[1], feed)
    assert rest.addresses(pipes[1], 1) == ["a"]
    rest.send("GET", held.get("href"), status=404)


def test_answers_without_end_are_ended_when_the_gateway_stops(restms_broker: Broker) -> None:
    with gateway_before(restms_broker) as gateway, gateway.client() as http, ThreadPoolExecutor(1) as pool:
        rest = RestClient(http)
        flow, pipe = rest.pipe("stream"), rest.pipe()
        [to_come] = rest.get(pipe).each("message")
        waiting = pool.submit(http.get, to_come.get("href"), headers={"prefer": "wait=60"})
        with http.stream("GET", flow, headers={"accept": "multipart/mixed"}) as answer:
            chunks = answer.iter_bytes()
            assert next(chunks) == b"--restms-message\r\n"
            readers = gateway.state.restms.readers
            until(lambda: sum(reader.uses for reader in [*readers._readers.values()]) == 2)
            gateway.server.should_exit = True
            assert [*chunks] == []
        assert waiting.result(WAIT_SECONDS).status_code == 404


def test_the_rules_of_the_broker_decide_for_the_user_of_a_request(secured: RunningGateway) -> None:
    with secured.client(auth=ANN) as ann, secured.client(auth=BOB) as bob, secured.client() as nobody:
        anns, bobs = RestClient(ann), RestClient(bob)
        assert nobody.get(DOMAIN).status_code == 401
        bobs.feed("news.ann", "fanout", status=403)
        feed = anns.feed("news.ann", "fanout")
        pipe, strange = anns.pipe(), bobs.pipe()
        anns.join(pipe, feed)
        # Who may not subscribe to the stream cannot join its feed, nor change it.
        bobs.join(strange, feed, status=403)
        bobs.send("PUT", feed, Element("feed", {"title": "mine"}), status=403)
        bobs.send("DELETE", feed, status=403)
        bobs.post(feed, message("a", app_id="ann", user_id="ann"))
        # A pipe is its reader's, even for who knows its name.
        bobs.send("GET", pipe, status=403)
        [found] = anns.take(pipe)
        assert (found.get("user_id"), found.get("app_id")) == ("bob", "")
        name = bobs.get(strange).get("name")
        assert anns.post("/restms/feed/default", message(name, "hi")) == ["1"]
        assert bobs.take(strange)[0].get("user_id") == "ann"
        # Replies through the default feed are read by their own pipe alone.
        assert ann.get("/v1/streams/restms.default/messages").status_code == 403
        answer = bob.post(feed, content=b"x", headers={"content-type": "text/plain"})
        assert answer.status_code == 201
        assert ann.put(feed, content=b"", headers={"content-type": RESTMS_XML}).status_code == 204


def test_zn12_a_reader_learns_who_was_authenticated_whoever_a_poster_says_to_be(
    secured: RunningGateway,
) -> None:
    """In either form, and for each of two who post the same."""
    with secured.client(auth=ANN) as ann, secured.client(auth=BOB) as bob:
        anns = RestClient(ann)
        feed, pipe = anns.feed("news.ann", "fanout"), anns.pipe()
        anns.join(pipe, feed)
        forged = {"app_id": "bank", "user_id": "ann", "sender_id": "ann"}
        for media in FORMS:
            RestClient(bob, media).post(feed, message("a", **forged))
            RestClient(ann, media).post(feed, message("a", **(forged | {"user_id": "bob"})))
        found = anns.take(pipe, 4)
        assert [one.get("user_id") for one in found] == ["bob", "ann", "bob", "ann"]
        assert {(one.get("app_id"), one.get("sender_id")) for one in found} == {("", "")}


def test_zn14_who_may_post_by_the_rules_needs_the_password_too(secured: RunningGateway) -> None:
    """Ann sets it, and it is asked of Bob and of her alike; what was refused is routed to nobody."""
    with secured.client(auth=ANN) as ann, secured.client(auth=BOB) as bob:
        anns, bobs = RestClient(ann), RestClient(bob)
        feed, pipe = anns.feed("news.ann", "fanout", password="swordfish"), anns.pipe()
        other, others = bobs.feed("news.bob", "fanout", password="haddock"), bobs.pipe()
        anns.join(pipe, feed)
        bobs.join(others, other)
        for who in (anns, bobs):
            assert "swordfish" not in who.http.get(feed).text
            for given in ({}, {"restms_password": ""}, {"restms_password": "haddock"}):
                who.send("POST", feed, message("refused"), status=403, **given)
            plain = who.http.post(feed, content=b"refused", headers={"content-type": "text/plain"})
            assert plain.status_code == 403
            who.send("POST", other, message("refused"), status=403, restms_password="swordfish")
        bobs.send("PUT", feed, Element("feed", {"password": "mine"}), status=403)
        for who in (anns, bobs):
            who.post(feed, message("for ann"), restms_password="swordfish")
            who.post(other, message("for bob"), restms_password="haddock")
        assert anns.addresses(pipe, 2) == ["for ann"] * 2
        assert bobs.addresses(others, 2) == ["for bob"] * 2
        for who, mine in ((anns, pipe), (bobs, others)):
            assert [m.get("async") for m in who.get(mine).each("message")] == ["1"]


def test_zn12_and_loopback_go_by_the_user_whom_the_broker_stamps(secured: RunningGateway) -> None:
    """A program that publishes to the stream itself can write any header, and is no other user by that."""
    with secured.client(auth=ANN) as ann, secured.client(auth=BOB) as bob:
        anns = RestClient(ann)
        loop, own, everything = anns.feed("news.ann", "loopback"), anns.pipe(), anns.pipe()
        anns.join(own, loop)
        anns.join(everything, loop, "^", "regexp")
        broker = secured.state.settings.broker
        with malamute.connect(broker, user=BOB[0], password=BOB[1], timeout=WAIT_SECONDS) as native:
            native.publish("news.ann", "forged", b"", {"restms.user_id": "ann"}, assurance="stored")
        RestClient(bob).post(loop, message("of bob"))
        anns.post(loop, message("own"))
        assert anns.addresses(own, 1) == ["own"]
        found = anns.take(everything, 3)
        assert [(one.get("address"), one.get("user_id"), one.get("sender_id")) for one in found] == [
            ("forged", "", ""),
            ("of bob", "bob", ""),
            ("own", "ann", ""),
        ]


def test_a_join_that_is_refused_leaves_nothing_behind(secured: RunningGateway) -> None:
    with secured.client(auth=("gate", "keeper")) as gate, secured.client(auth=BOB) as bob:
        gates, bobs = RestClient(gate), RestClient(bob)
        feeds = [gates.feed(f"news.{kind}", kind) for kind in ("rotator", "service", "fanout")]
        pipe = bobs.pipe()
        for feed in feeds:
            bobs.join(pipe, feed, status=403)
            # The pipe has its default join alone, and can be read, joined and deleted.
            assert len([*bobs.get(pipe).each("join")]) == 1
        own = bobs.feed("news.bob", "fanout")
        join = bobs.join(pipe, own)
        bobs.post(own, message("a"))
        assert bobs.addresses(pipe, 1) == ["a"]
        bobs.send("DELETE", join)
        bobs.send("DELETE", pipe)


def test_to_look_at_restms_makes_nothing(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    """Any page can have a browser send a GET."""
    gateway = start()
    with gateway.client() as http:
        rest = RestClient(http)
        for url in (DOMAIN, "/restms/feed/default", "/restms/profile/3/Defaults"):
            rest.send("GET", url)
        assert [row.name for row in client.query(StreamsQuery()) if not row.name.startswith("$")] == []
        rest.pipe()
        assert "restms" in {row.name for row in client.query(StreamsQuery())}


def test_pipes_take_up_no_feeds_of_the_broker_until_they_are_replied_to(tmp_path: Path) -> None:
    few = small_config()
    few = replace(few, overrides={"feeds": 3})
    with Broker(config=few) as broker, gateway_before(broker) as gateway, gateway.client() as http:
        rest = RestClient(http)
        requests = rest.feed("requests", "fanout")
        pipes = [rest.pipe() for _ in range(6)]
        rest.join(pipes[0], requests)
        name = rest.get(pipes[1]).get("name")
        # Who is to reply may be a program that publishes to the stream itself.
        rest.post(requests, message("a", reply_to=name))
        with malamute.connect(broker.url, timeout=WAIT_SECONDS) as native:
            native.publish("restms.default", name, b"hi", assurance="stored")
            assert len(native.query(FeedsQuery())) == 2
            assert rest.addresses(pipes[1], 1) == [name]
            other = rest.get(pipes[2]).get("name")
            assert rest.post("/restms/feed/default", message(other)) == ["1"]
            assert rest.addresses(pipes[2], 1) == [other]
            for pipe in pipes[1:3]:
                rest.send("DELETE", pipe)
            assert len(native.query(FeedsQuery())) == 1
