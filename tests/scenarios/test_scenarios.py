"""Acts of a program with a broker: on each edge and each broker, calm and with a restart in the middle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scenario_world import PATIENCE, World

from malamute import errors
from malamute.client.events import Connected, Lost, Recalled

Play = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


def told_of_the_restart(world: World) -> bool:
    """Whether the clients were notified of what happened to their connections, and of nothing else."""
    lost = sum(isinstance(event, Lost) for event in world.events)
    back = sum(isinstance(event, Connected) for event in world.events)
    return (lost > 0) == (back > 0) == world.restarts


async def take(messages: Any, count: int) -> list[Any]:
    """So many messages."""
    taken: list[Any] = []
    while len(taken) < count:
        chunk = await messages.take(count - len(taken), PATIENCE)
        assert chunk, f"{len(taken)} of {count} messages came"
        taken += chunk
    return taken


def test_publish_subscribe_and_replay(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect("alice")
        live = await client.subscribe("weather", "temp.*", where="unit = 'C'")
        for n in range(50):
            await client.publish("weather", "temp.oslo", b"%d" % n, {"unit": "C"})
            await client.publish("weather", "temp.rome", b"%d" % n, {"unit": "F"})
        await client.flush()
        seen = [await live.receive(PATIENCE) for _ in range(20)]
        await world.middle()
        await client.publish("weather", "wind.oslo", b"", {"unit": "C"})
        last = await client.publish("weather", "temp.oslo", b"last", {"unit": "C"}, assurance="stored")
        while seen[-1].body != b"last":
            seen += await live.take(7, PATIENCE)
        assert [m.body for m in seen] == [b"%d" % n for n in range(50)] + [b"last"]
        assert last in (seen[-1].sequence, 0 if world.restarts else None)
        assert {m.sender for m in seen} == {"alice"}
        for start in ("first", 1, timedelta(hours=1)):
            again = await client.subscribe("weather", "temp.*", where="unit = 'C'", start=start)
            assert [m.sequence for m in await take(again, 51)] == [m.sequence for m in seen]
            again.cancel()
        assert told_of_the_restart(world)

    play(scenario)


def test_batches_and_an_iterator_that_ends(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        async with client.subscribe("s", start="first", credit=100) as messages:
            async with client.publisher("s", batch=10) as out:
                await out.publish_many(["a"] * 500, [b"%d" % n for n in range(500)])
                await world.middle()
                await out.publish_many(["a"] * 500, [b"%d" % n for n in range(500, 1000)])
            seen: list[int] = []
            async for batch in messages.batches(30):
                assert 0 < len(batch) <= 30
                seen += [int(message.body) for message in batch]
                if len(seen) == 1000:
                    messages.cancel()
            assert [message async for message in messages] == []
        assert seen == list(range(1000))

    play(scenario)


def test_every_receipt_shows_its_sequence(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        async with client.publisher("s", batch=7) as out:
            receipts = [await out.publish("a", b"%d" % n) for n in range(100)]
            await receipts[-1].wait(PATIENCE)
            before = [receipt.sequence for receipt in receipts]
            await world.middle()
            receipts += [await out.publish("a", b"%d" % n) for n in range(100, 200)]
        assert before == list(range(1, 101))
        assert all(receipt.done and receipt.error is None for receipt in receipts)
        stored = await take(await client.subscribe("s", start="first"), 200)
        assert [int(message.body) for message in stored] == list(range(200))
        # A publish that was confirmed again after a break tells no sequence; any other tells the right one.
        reported = [(receipt.sequence, m.sequence) for receipt, m in zip(receipts, stored, strict=True)]
        assert all(mine in (0, his) for mine, his in reported)

    play(scenario)


def test_mail_is_there_until_it_is_acknowledged(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        for n in range(5):
            await alice.send("bob", "hello", b"%d" % n, {"n": n}, correlation=n)
        mailbox = bob.mailbox(auto_ack=False)
        held = [await mailbox.receive(PATIENCE) for _ in range(5)]
        for mail in held[:3]:
            mail.ack()
        await bob.flush()
        await world.middle()
        async with alice.sender("bob") as out:
            await out.publish("more", b"5")
        more = await mailbox.receive(PATIENCE)
        assert [m.correlation for m in held] == [0, 1, 2, 3, 4]
        assert (more.subject, more.body, more.sender) == ("more", b"5", "alice")
        await bob.close()
        again = await world.connect("bob")
        left = [await again.receive(PATIENCE) for _ in range(3)]
        assert [m.body for m in left] == [b"3", b"4", b"5"]
        assert all(m.redelivered for m in left)

    play(scenario)


def test_requests_have_many_replies(play: Play) -> None:
    async def scenario(world: World) -> None:
        asker, worker = await world.connect(), await world.connect("worker")
        work = await worker.work("sum", "add.*", credit=10)
        pending = [await asker.request("sum", "add.x", bytes([n, n]), timeout=PATIENCE) for n in range(10)]
        requests = [await work.receive(PATIENCE) for _ in range(5)]
        for request in requests:
            await request.reply(b"so far", final=False)
        await worker.flush()
        await world.middle()
        requests += [await work.receive(PATIENCE) for _ in range(5)]
        for request in requests:
            receipt = await request.reply(b"%d" % sum(request.body), assurance="stored")
            try:
                await receipt.wait(PATIENCE)
            except errors.NotOutstanding:
                # The broker had given it to nobody yet when the reply came: it is redelivered.
                again = await work.receive(PATIENCE)
                await again.reply(b"%d" % sum(again.body), assurance="stored")
        for number, replies in enumerate(pending):
            bodies = [reply.body async for reply in replies]
            assert bodies[-1] == b"%d" % (2 * number)
            assert set(bodies[:-1]) <= {b"so far"}

    play(scenario)


def test_a_cursor_is_where_its_reader_was(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        async with client.publisher("s") as out:
            await out.publish_many(["a"] * 20, [b"%d" % n for n in range(20)])
        async with client.subscribe("s", cursor="report", start="first") as messages:
            for _ in range(7):
                message = await messages.receive(PATIENCE)
            await messages.commit(message)
            await world.middle()
            message = await messages.receive(PATIENCE)
            await messages.commit(message.sequence)
        async with client.subscribe("s", cursor="report") as messages:
            assert (await messages.receive(PATIENCE)).body == b"8"
        with pytest.raises(errors.InvalidValue):
            await (await client.subscribe("s")).commit(1)

    play(scenario)


def test_the_broker_is_asked_and_changed(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        await client.publish("s", "a", b"", assurance="stored")
        assert (await client.query("status"))["clients"] == 1
        await world.middle()
        assert "s" in [row["name"] for row in await client.query("streams")]
        await client.change("cursor.set", stream="s", cursor="c", start="first")
        async with client.subscribe("s", cursor="c") as messages:
            assert (await messages.receive(PATIENCE)).sequence == 1

    play(scenario)


def test_errors_are_the_same_and_change_nothing(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        with pytest.raises(errors.InvalidValue):
            await client.subscribe("s", start="yesterday")
        with pytest.raises(errors.InvalidSelector):
            await client.subscribe("s", where="unit = ")
        with pytest.raises(errors.TooLarge):
            await client.publish("s", "a" * 300, b"")
        with pytest.raises(errors.InvalidValue):
            client.mailbox()
        await world.middle()
        with pytest.raises(errors.MalamuteError):
            await client.query("weather")
        with pytest.raises(errors.TimedOut):
            await (await client.subscribe("s")).receive(0.01)
        replies = await client.request("nobody", "a", timeout=0.01)
        with pytest.raises(errors.TimedOut):
            await anext(aiter(replies))
        assert [reply async for reply in replies] == []
        assert await client.publish("s", "a", b"", assurance="stored") == 1
        await client.close()
        with pytest.raises(errors.Closed):
            await client.publish("s", "a", b"")

    play(scenario)


def test_every_verb_does_what_it_says(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        for n in range(5):
            await alice.send("bob", "hello", b"%d" % n)
        mailbox = bob.mailbox(auto_ack=False)
        held = [await mailbox.receive(PATIENCE) for _ in range(5)]
        await world.middle()
        await bob.flush()
        for mail in held:
            mail.in_progress()
        held[0].ack()
        held[1].nak(0)
        held[2].reject("no paper")
        held[3].release()
        again = {}
        for _ in range(2):
            mail = await mailbox.receive(PATIENCE)
            again[mail.body] = mail
        assert again.keys() == {b"1", b"3"}
        assert again[b"1"].attempts > again[b"3"].attempts - world.restarts
        for mail in (*again.values(), held[4]):
            mail.ack()
            mail.nak()
            assert mail.settled
        await bob.flush()
        while await bob.query("messages", kind="mailbox", name="bob"):
            pass  # what was settled is there until that is on the disk
        (dead,) = await bob.query("messages", kind="mailbox", name="bob", dead=True)
        assert (dead["body"], dead["properties"]["dead"]["reason"]) == (b"2", "no paper")
        with pytest.raises(errors.InvalidValue):
            held[4].reject("x" * 300)
        with pytest.raises(errors.InvalidValue):
            held[4].nak(-1)

    play(scenario)


def test_who_asks_learns_how_a_message_ended(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        sent = {
            name: await alice.send("bob", name, b"", assurance="confirmed", correlation=name, **options)
            for name, options in (
                ("take", {}),
                ("refuse", {"tracker": "mine"}),
                ("expire", {"ttl": timedelta(milliseconds=200), "delay": 3600}),
                ("withdraw", {"delay": 3600}),
            )
        }
        assert sent["refuse"].tracker == "mine"
        assert [delivery.done for delivery in sent.values()][3:] == [False]
        mailbox = bob.mailbox(auto_ack=False)
        held = [await mailbox.receive(PATIENCE) for _ in range(2)]
        await world.middle()
        await bob.flush()
        held[0].ack()
        held[1].reject("no paper")
        await bob.flush()  # after a restart, both are settled when they were redelivered
        await alice.query("status")  # a withdrawal whose answer is lost is not repeated, a question is
        assert await alice.withdraw("mailbox", "bob", "withdraw") == 1
        with pytest.raises(errors.NotFound):
            await alice.withdraw("mailbox", "bob", "nothing")
        outcomes = {name: await delivery.wait(PATIENCE) for name, delivery in sent.items()}
        assert outcomes == {
            "take": "acknowledged",
            "refuse": "rejected",
            "expire": "expired",
            "withdraw": "withdrawn",
        }
        assert sent["refuse"].reason == "no paper"
        assert all(delivery.done and delivery.error is None for delivery in sent.values())
        with pytest.raises(errors.TimedOut):
            await alice.receive(0.01)

    play(scenario)


def test_a_message_is_cancelled_by_its_id_unless_a_consumer_has_it(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob, carol = [await world.connect(name) for name in ("alice", "bob", "carol")]

        async def cancel(identity: str) -> tuple[int, int]:
            found = await carol.cancel("mailbox", "bob", id=identity)
            return found.cancelled, found.in_flight

        await alice.send("bob", "later", b"", id="later", delay=3600, assurance="stored")
        await alice.send("bob", "now", b"", id="now", assurance="stored")
        held = await bob.mailbox(auto_ack=False).receive(PATIENCE)
        await world.middle()
        await bob.flush()
        await carol.query("status")
        assert await cancel("later") == (1, 0)
        assert await cancel("later") == (0, 0)
        assert await cancel("now") == (0, 1)
        await bob.flush()
        recalled = [event for event in world.events if isinstance(event, Recalled)]
        assert recalled == [Recalled("bob", (held.sequence,), "cancelled")]
        held.ack()
        await bob.flush()
        assert await cancel("now") == (0, 0)
        for kind, identity in (("mailbox", ""), ("mailbox", "x" * 256), ("mailbox", 5), ("stream", "x")):
            with pytest.raises(errors.InvalidValue):
                await carol.cancel(kind, "bob", id=identity)

    play(scenario)


def test_a_temporary_mailbox_goes_with_its_last_consumer(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob, carol = [await world.connect(name) for name in ("alice", "bob", "carol")]
        async with bob.consume("once", temporary=True) as mine:
            async with carol.consume("once", auto_ack=False):
                await alice.send("once", "a", b"", assurance="stored")
                await world.middle()
                for client in (bob, carol):
                    await client.flush()
            assert (await mine.receive(PATIENCE)).subject == "a"
            await alice.send("once", "b", b"", assurance="stored")
        await bob.flush()
        assert "once" not in {row["name"] for row in await alice.query("mailboxes")}
        await alice.send("once", "c", b"", assurance="stored")
        with pytest.raises(errors.InUse):
            await bob.consume("once", temporary=True)

    play(scenario)


def test_a_message_bounces_to_its_sender_and_no_further(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        anybody = await world.connect("")
        sent = await alice.send("bob", "hello", b"1", correlation=7, assurance="confirmed")
        await anybody.send("bob", "hello", b"2")
        await anybody.flush()
        mailbox = bob.mailbox(auto_ack=False)
        held = [await mailbox.receive(PATIENCE) for _ in range(2)]
        await world.middle()
        await bob.flush()
        with pytest.raises(errors.InvalidValue, match="its sender has no address"):
            held[1].bounce()
        with pytest.raises(errors.InvalidValue, match="reason"):
            held[0].bounce("x" * 300)
        assert not held[0].settled
        held[1].ack()
        held[0].bounce("moved")
        assert held[0].settled
        await bob.flush()  # after a restart, both are settled when they are redelivered
        assert (await sent.wait(PATIENCE), sent.reason) == ("bounced", "moved")
        back = await alice.receive(PATIENCE)
        assert (back.subject, back.body, back.sender, back.bounced) == ("hello", b"1", "bob", "bob")
        assert (back.correlation, back.properties["reason"], held[0].bounced) == (7, "moved", "")
        whole = await alice.query("message", kind="mailbox", name="alice", sequence=back.sequence)
        assert (whole["body"], whole["state"]) == (b"1", "in-flight")
        with pytest.raises(errors.InvalidValue, match="it has bounced already"):
            back.bounce()
        back.ack()
        await alice.flush()
        for name in ("alice", "bob"):
            while await alice.query("messages", kind="mailbox", name=name):
                pass  # what was settled is there until that is on the disk
        with pytest.raises(errors.NotFound):
            await alice.query("message", kind="mailbox", name="alice", sequence=back.sequence)

    play(scenario)


def test_who_asks_for_work_learns_how_a_request_ended(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, worker = await world.connect("alice"), await world.connect("worker")
        asked = {
            subject: await alice.request(
                "printer", subject, b"", timeout=PATIENCE, assurance="confirmed", **options
            )
            for subject, options in (
                ("reply", {"tracker": "mine"}),
                ("refuse", {}),
                ("quiet", {}),
                ("expire", {"ttl": timedelta(milliseconds=200), "delay": 3600}),
            )
        }
        assert asked["reply"].tracker == "mine"
        assert asked["quiet"].outcome == ""
        work = await worker.work("printer", credit=3)
        requests = {request.subject: request for request in [await work.receive(PATIENCE) for _ in "123"]}
        await world.middle()
        await worker.flush()
        await requests["reply"].reply(b"part", final=False)
        await requests["reply"].reply(b"whole")
        requests["refuse"].reject("no paper")
        requests["quiet"].ack()
        await worker.flush()  # after a restart, all are settled when they were redelivered
        # The replies are all there before the outcome ends their iteration, whichever is asked for first.
        assert await asked["reply"].wait(PATIENCE) == "acknowledged"
        replies = {subject: [reply.body async for reply in each] for subject, each in asked.items()}
        assert replies == {"reply": [b"part", b"whole"], "refuse": [], "quiet": [], "expire": []}
        assert {subject: each.outcome for subject, each in asked.items()} == {
            "reply": "acknowledged",
            "refuse": "rejected",
            "quiet": "acknowledged",
            "expire": "expired",
        }
        assert asked["refuse"].reason == "no paper"
        with pytest.raises(errors.TimedOut):
            await alice.receive(0.01)
        with pytest.raises(errors.InvalidValue, match="tracker without an outcome"):
            await alice.request("printer", "reply", b"", tracker="mine")

    play(scenario)


def test_options_are_kept_over_everything(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        for n in range(3):
            await alice.send("bob", "low", b"%d" % n, id="same" if n else "first")
        await alice.send("bob", "late", b"", at=datetime.now(UTC) + timedelta(seconds=0.3))
        await alice.send("bob", "high", b"", priority=9, reply_to="carol")
        await world.middle()
        mail = [await bob.receive(PATIENCE) for _ in range(4)]
        assert [m.subject for m in mail] == ["high", "low", "low", "late"]
        assert mail[0].properties["reply_to"] == "carol"
        with pytest.raises(errors.NoWorkers):
            await anext(aiter(await alice.request("nobody", "a", immediate=True)))
        with pytest.raises(errors.InvalidValue):
            await alice.send("bob", "a", b"", ttl=-1)
        with pytest.raises(errors.InvalidValue):
            await alice.send("bob", "a", b"", priority=10)
        with pytest.raises(errors.InvalidValue):
            await alice.send("bob", "a", b"", delay=1, at=datetime.now(UTC))
        with pytest.raises(errors.InvalidValue):
            await (await world.connect()).send("bob", "a", b"", assurance="confirmed")

    play(scenario)


def test_handlers_settle_what_they_are_given(play: Play) -> None:
    async def scenario(world: World) -> None:
        asker, worker = await world.connect("asker"), await world.connect("worker")
        log: list[str] = []

        def note(what: str) -> None:
            log.append(what)
            if {"hello", "seen one", "seen fail", "seen last"} <= set(log):
                worker.stop()

        @worker.service("sum", "add.*", credit=5)
        @world.handler
        async def add(request: Any) -> bytes | None:
            if request.body == b"fail" and not request.redelivered:
                log.append("failed")
                request.nak(0)
                return None
            await request.reply(b"so far", final=False)
            log.append(request.body.decode())
            await worker.publish("log", "done", request.body)
            # A call of the client that waits, from within a handler.
            assert (await worker.query("status"))["clients"] >= 1
            return request.body.upper()

        @worker.on_mail()
        @world.handler
        async def mail(message: Any) -> None:
            note(message.subject)

        @worker.subscription("log", cursor="seen")
        @world.handler
        async def seen(message: Any) -> None:
            note(f"seen {message.body.decode()}")

        pending = [
            await asker.request("sum", "add.x", body, timeout=PATIENCE) for body in (b"one", b"fail", b"last")
        ]
        await asker.send("worker", "hello", b"")
        await world.middle()
        await worker.run()
        answers = [[reply.body async for reply in replies] for replies in pending]
        assert [answer[-1] for answer in answers] == [b"ONE", b"FAIL", b"LAST"]
        assert {"failed", "one", "fail", "last"} <= set(log)
        while await asker.query("messages", kind="mailbox", name="worker"):
            pass

    play(scenario)


def test_a_handler_that_fails_rejects_mail_if_so_configured_and_stays_before_the_message_of_a_stream(
    play: Play,
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        sent = await alice.send("bob", "hello", b"", assurance="confirmed")

        @bob.on_mail(on_error="reject")
        @world.handler
        async def fail(message: Any) -> None:
            bob.stop()
            raise ValueError("no paper")

        await world.middle()
        await bob.run()
        assert await sent.wait(PATIENCE) == "rejected"
        assert sent.reason == "ValueError: no paper"

        @bob.subscription("log", start="first", cursor="seen")
        @world.handler
        async def stumble(message: Any) -> None:
            if message.sequence == 2:
                raise ValueError("stumbled")

        async with alice.publisher("log") as out:
            await out.publish_many(["a"] * 3, [b""] * 3)
        with pytest.raises(ValueError, match="stumbled"):
            await bob.run()
        await bob.flush()
        async with bob.subscribe("log", cursor="seen") as messages:
            assert (await messages.receive(PATIENCE)).sequence == 2

    play(scenario)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


FAILURES = {
    "surrogate": (ValueError("cannot read caf\udce9.txt"), r"ValueError: cannot read caf\udce9.txt"),
    "long": (ValueError("x" * 3_000_000), "ValueError: xxx"),
    "wide": (ValueError("\N{SNOWMAN}" * 3_000), "ValueError: \N{SNOWMAN}"),
    "mute": (Mute(), "Mute"),
}


@pytest.mark.parametrize("on_error", ["reply", "reject", "nak"])
def test_whatever_the_text_of_a_failure_it_is_answered_and_the_worker_goes_on(
    play: Play, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark puts a formatter of its own on the handlers of pytest, which takes the text of each exception.
    monkeypatch.setattr(logging.getLogger("malamute"), "propagate", False)

    async def scenario(world: World) -> None:
        asker, worker = await world.connect("asker"), await world.connect("worker")

        @worker.service("files", on_error=on_error)
        @world.handler
        async def handle(request: Any) -> bytes:
            if request.subject == "last":
                worker.stop()
            elif not request.redelivered:
                raise FAILURES[request.subject][0]
            return b"good"

        asked = {
            name: await asker.request("files", name, timeout=PATIENCE, assurance="confirmed")
            for name in (*FAILURES, "last")
        }
        await worker.run()
        for name, replies in asked.items():
            if on_error == "nak" and name != "last":
                # The message is redelivered after a backoff, which may be later than the end of this worker.
                replies.cancel()
                continue
            answers = [reply async for reply in replies]
            if name == "last":
                assert [reply.body for reply in answers] == [b"good"]
                continue
            said = answers[0].headers["malamute.error"] if answers else replies.reason
            assert said.startswith(FAILURES[name][1]), said[:200]
            assert len(said.encode()) <= 4096

    play(scenario)


@pytest.mark.parametrize("on_error", ["reply", "reject", "nak"])
def test_a_result_that_is_no_body_is_refused_at_once_with_its_type_and_its_handler(
    play: Play, on_error: str
) -> None:
    async def scenario(world: World) -> None:
        asker, worker = await world.connect("asker"), await world.connect("worker")
        calls: list[str] = []
        results = {"half": "half \udce9", "number": 5, "map": {"a": 1}, "good": b"good"}

        @worker.service("numbers", on_error=on_error)
        @world.handler
        async def handle(request: Any) -> Any:
            calls.append(request.subject)
            if request.subject == "good":
                worker.stop()
            return results[request.subject]

        asked = {
            name: await asker.request("numbers", name, timeout=PATIENCE, assurance="confirmed")
            for name in results
        }
        await worker.run()
        assert calls == [*results]
        for name, replies in asked.items():
            answers = [reply async for reply in replies]
            if name == "good":
                assert [reply.body for reply in answers] == [b"good"]
                continue
            said = answers[0].headers["malamute.error"] if on_error == "reply" else replies.reason
            assert f"returned {type(results[name]).__name__}: " in said, said

    play(scenario)


def test_several_consume_from_a_mailbox_each_from_the_senders_that_it_names(play: Play) -> None:
    """WP19: and what one of them does not acknowledge goes to another."""

    async def scenario(world: World) -> None:
        alice, shop = await world.connect("alice"), await world.connect("shop.oslo")
        bob, carol = await world.connect("bob"), await world.connect()
        orders = await bob.consume("orders", "shop.*")
        anything = await carol.consume("orders", auto_ack=False)
        for n in range(2):
            await alice.send("orders", "a", b"%d" % n)
        first = await anything.receive(PATIENCE)
        await shop.send("orders", "b", b"from a shop")
        mail = await orders.receive(PATIENCE)
        assert (first.body, mail.body, mail.sender) == (b"0", b"from a shop", "shop.oslo")
        for client, message in ((bob, mail), (carol, first)):
            message.ack()
            await client.flush()
        await world.middle()
        second = await anything.receive(PATIENCE)
        assert second.body == b"1"
        # At the end of its client the last message is acknowledged, as with a mailbox of one's own.
        await shop.send("orders", "b", b"last")
        assert (await orders.receive(PATIENCE)).body == b"last"
        await bob.close()
        anything.cancel()
        assert anything.closed
        with pytest.raises(errors.Closed):
            await anything.receive(PATIENCE)
        async with carol.consume("orders", credit=10) as rest:
            again = await rest.receive(PATIENCE)
        assert (again.body, again.attempts >= 2) == (b"1", True)
        await carol.flush()
        assert await alice.query("messages", kind="mailbox", name="orders") == []
        drained = await carol.consume("orders", auto_ack=False)
        await alice.send("orders", "a", b"held")
        held = await drained.receive(PATIENCE)
        drained.drain()
        await alice.send("orders", "a", b"left")
        held.ack()
        await carol.flush()
        with pytest.raises(errors.Closed):
            await drained.receive(PATIENCE)
        drained.cancel()
        async with carol.consume("orders") as rest:
            assert (await rest.receive(PATIENCE)).body == b"left"
        with pytest.raises(errors.InvalidName):
            await carol.consume("")
        with pytest.raises(errors.AccessRefused):
            await carol.consume("$mine")

    play(scenario)


def test_a_block_of_the_mailbox_gives_back_at_its_end_what_was_not_taken(play: Play) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.connect("alice"), await world.connect("bob")
        for n in range(5):
            await alice.send("bob", "hello", b"%d" % n)
        async with bob.mailbox(auto_ack=False) as mailbox:
            held = await mailbox.receive(PATIENCE)
            async with bob.mailbox(auto_ack=False):
                pass
            # Another block has not ended.
            second = await mailbox.receive(PATIENCE)
            second.ack()
        with pytest.raises(errors.Closed, match="open it again"):
            await mailbox.receive(PATIENCE)
        await bob.flush()
        rows = await alice.query("messages", kind="mailbox", name="bob")
        states = [(row["state"], row["attempts"]) for row in rows]
        assert states == [("in-flight", 1), *[("ready", 0)] * 3]
        held.ack()
        await bob.flush()
        await world.middle()

        # Replies come past what nobody takes, and a new block has all of it.
        work = await alice.work("svc")
        replies = await bob.request("svc", "a", b"", timeout=PATIENCE)
        await bob.flush()
        await (await work.receive(PATIENCE)).reply(b"!")
        assert [reply.body async for reply in replies] == [b"!"]
        async with bob.mailbox() as mailbox:
            left = [await mailbox.receive(PATIENCE) for _ in range(3)]
        assert [(m.body, m.attempts) for m in left] == [(b"2", 1), (b"3", 1), (b"4", 1)]
        await bob.flush()
        assert await alice.query("messages", kind="mailbox", name="bob") == []

    play(scenario)


def test_a_drained_client_ends_its_loops_and_leaves_the_rest_to_others(play: Play) -> None:
    async def scenario(world: World) -> None:
        client, worker = await world.connect("alice"), await world.connect("worker")
        async with client.publisher("s") as out:
            await out.publish_many(["a"] * 10, [b"x"] * 10)
        for n in range(4):
            await client.send("worker", "hello", b"%d" % n)
        messages = await worker.subscribe("s", start="first")
        seen = [await messages.receive(PATIENCE)]
        work = await worker.work("svc", credit=5)
        pending = [await client.request("svc", "a", b"%d" % n, timeout=PATIENCE) for n in range(3)]
        await client.flush()
        request = await work.receive(PATIENCE)
        mailbox = worker.mailbox(auto_ack=False)
        mail = await mailbox.receive(PATIENCE)
        await world.middle()
        await worker.flush()
        await worker.flush()
        worker.drain()
        seen += [message async for message in messages]
        assert [m.sequence for m in seen] == list(range(1, len(seen) + 1))
        assert [_ async for _ in work] == []
        mail.ack()
        receipt = await request.reply(b"!", assurance="stored")
        await receipt.wait(PATIENCE)
        assert [reply.body async for reply in pending[0]] == [b"!"]
        await worker.close()

        other = await world.connect("worker")
        again = await other.work("svc", credit=5)
        for _ in range(2):
            request = await again.receive(PATIENCE)
            assert request.attempts <= 1 + world.restarts
            await request.reply(b"?")
        for replies in pending[1:]:
            assert [reply.body async for reply in replies] == [b"?"]
        left = [await other.receive(PATIENCE) for _ in range(3)]
        assert [m.body for m in left] == [b"1", b"2", b"3"]

    play(scenario)


def test_keys_of_a_bucket(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect("alice")
        bucket = client.bucket("results")
        assert await bucket.get("job") is None
        first = await bucket.put("job", "begun", ttl=3600, expect=0)
        with pytest.raises(errors.NotAsExpected):
            await bucket.put("job", b"begun", expect=0)
        entry = (await bucket.get_many(["job", "none"]))["job"]
        assert (entry.text, entry.revision, 0 < entry.ttl <= 3600) == ("begun", first, True)
        assert [await bucket.add("count", 5), await bucket.add("count", -2)] == [5, 3]
        watch = await bucket.watch("job", "count")
        states = dict([await watch.receive(PATIENCE), await watch.receive(PATIENCE)])
        assert {key: found.value for key, found in states.items()} == {"job": b"begun", "count": b"3"}
        await world.middle()
        second = await bucket.put("job", b"done", expect=first)
        assert second > first
        key, found = await watch.receive(PATIENCE)
        assert (key, found.revision, found.ttl) == ("job", second, None)
        assert await bucket.delete("job", expect=second)
        key, found = await watch.receive(PATIENCE)
        assert (key, found) == ("job", None)
        assert not await bucket.delete("job")
        watch.cancel()
        with pytest.raises(errors.Closed):
            await watch.receive(PATIENCE)

    play(scenario)


def test_a_result_is_put_in_the_commit_of_the_acknowledgement(play: Play) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect("alice")
        bucket = client.bucket("results")
        for body in (b"1", b"2"):
            await client.send("alice", "job", body)
        async with client.mailbox(auto_ack=False) as mailbox:
            mail = await mailbox.receive(PATIENCE)
            with pytest.raises(errors.InvalidValue):
                mail.ack(put=("results", "1"))
            with pytest.raises(errors.InvalidName):
                mail.ack(put=("results", "", b"one"))
            revision = await acknowledged(mail, world, ("results", "1", b"one", 60))
            assert (await bucket.get("1")).revision == revision
            with pytest.raises(errors.NotOutstanding):
                mail.ack(put=("results", "1", b"two"))
            await world.middle()
            mail = await mailbox.receive(PATIENCE)
            assert mail.body == b"2"
            await acknowledged(mail, world, ("results", "2", "two"))
        found = await bucket.get_many(["1", "2"])
        assert {key: entry.text for key, entry in found.items()} == {"1": "one", "2": "two"}
        rows = await client.query("mailboxes")
        assert {row["name"]: row["messages"] for row in rows}["alice"] == 0

    play(scenario)


async def acknowledged(mail: Any, world: World, put: tuple[Any, ...]) -> Any:
    """The revision of a put with its acknowledgement."""
    revision = mail.ack(put=put)
    return revision if world.edge == "sync" else await revision
