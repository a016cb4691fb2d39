"""The asyncio edge: cancellation at every point, many tasks on one client, and what it does to the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop
from depth import DEPTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import malamute
import malamute.aio
from malamute import errors
from malamute.client.events import Connected, Lost
from malamute.testing import Broker

PATIENCE = 60.0

Program = Callable[[malamute.aio.Client], Coroutine[Any, Any, None]]
Play = Callable[[Program], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(broker: Broker, request: pytest.FixtureRequest) -> Play:
    def start(program: Program) -> None:
        async def whole() -> None:
            async with malamute.aio.connect(broker.url, address="alice", timeout=PATIENCE) as client:
                client.on_event = lambda event: None
                await program(client)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(whole())

    return start


names = (f"s{number}" for number in range(1_000_000))
"""Every example has a stream, or a service, of its own."""


async def cut(call: Awaitable[Any], at: int) -> Any:
    """Do it, and cancel it at its wait with this number, from 0; None then."""

    @types.coroutine
    def drive() -> Any:
        steps = call.__await__()
        count = 0
        while True:
            try:
                waited = next(steps)
            except StopIteration as end:
                return end.value
            if count == at:
                with pytest.raises(asyncio.CancelledError):
                    steps.throw(asyncio.CancelledError())
                return None
            count += 1
            yield waited

    return await drive()


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
some = settings(max_examples=15 * DEPTH, deadline=None, suppress_health_check=SLOW)
cuts = st.integers(0, 4)


def test_what_lingers_for_a_moment_is_published(play: Play) -> None:
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        messages = await client.subscribe(stream)
        async with client.publisher(stream, linger=1e-5) as out:
            # Without a pause, so that each finds the one before waiting.
            receipts = [await out.publish("a", b"") for _ in range(10)]
            await receipts[-1].wait()
        assert len(await messages.take(10, PATIENCE)) == 10

    play(program)


@some
@given(
    st.lists(st.tuples(st.sampled_from(["publish", "receive", "take", "next", "batch"]), cuts), max_size=30)
)
def test_a_cancelled_subscriber_misses_nothing_and_sees_nothing_twice(play, steps):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        messages = await client.subscribe(stream, credit=8)
        published, seen = 0, []
        looks: dict[str, Callable[[], Awaitable[Any]]] = {
            "receive": lambda: messages.receive(PATIENCE),
            "take": lambda: messages.take(3, PATIENCE),
            "next": lambda: anext(messages),
            "batch": lambda: anext(messages.batches(2)),
        }
        for step, at in steps:
            if step == "publish":
                for _ in range(at):
                    await client.publish(stream, "a", b"")
                published += at
            elif published > len(seen):
                found = await cut(looks[step](), at)
                seen += found if isinstance(found, list) else [found] if found else []
        await client.publish(stream, "a", b"", assurance="stored")
        while len(seen) <= published:
            seen.append(await messages.receive(PATIENCE))
        assert [message.sequence for message in seen] == list(range(1, published + 2))
        messages.cancel()

    play(program)


@some
@given(st.lists(st.tuples(st.sampled_from(["one", "many", "send"]), cuts), max_size=30))
def test_a_cancelled_publish_is_published_once_or_not_at_all(play, steps):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        sure: list[bytes] = []
        out = client.publisher(stream, batch=2, linger=0.001)
        # With a window of one command nearly every publish waits.
        client._session.outbox.window_commands = 1
        for number, (step, at) in enumerate(steps):
            body = b"%d" % number
            if step == "one":
                call: Any = out.publish("a", body)
            elif step == "many":
                call = done(out.publish_many(["a"] * 3, [body] * 3))
            else:
                call = client.publish(stream, "a", body, assurance="stored")
            if await cut(call, at) is not None:
                sure += [body] * (3 if step == "many" else 1)
        await out.close()
        await client.publish(stream, "a", b"end", assurance="stored")
        found: list[bytes] = []
        messages = await client.subscribe(stream, start="first")
        while not found or found[-1] != b"end":
            found.append((await messages.receive(PATIENCE)).body)
        most = {b"%d" % n: 3 if step == "many" else 1 for n, (step, _) in enumerate(steps)}
        assert all(found.count(body) == sure.count(body) for body in sure)
        assert all(found.count(body) <= count for body, count in most.items())

    play(program)


async def done(call: Awaitable[None]) -> bool:
    await call
    return True


@some
@given(st.lists(cuts, max_size=30), st.booleans())
def test_a_cancelled_look_for_mail_loses_none(play, steps, auto):
    async def program(client: malamute.aio.Client) -> None:
        mailbox = client.mailbox(auto_ack=auto, credit=3)
        seen: list[malamute.Mail] = []

        def take(mail: malamute.Mail | None) -> None:
            if mail is not None:
                seen.append(mail)
                if not auto:
                    mail.ack()

        for at in steps:
            await cut(client.send("alice", "a", b""), at)
            take(await cut(mailbox.receive(PATIENCE), at) if at < 3 else None)
        await client.send("alice", "end", b"")
        while not seen or seen[-1].subject != "end":
            take(await mailbox.receive(PATIENCE))
        sequences = [mail.sequence for mail in seen]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        assert len(seen) <= len(steps) + 1
        assert not any(mail.redelivered for mail in seen)

    play(program)


@some
@given(st.lists(st.tuples(cuts, cuts, cuts), max_size=10))
def test_cancelled_requests_and_workers_leave_the_client_as_it_was(play, steps):
    async def program(client: malamute.aio.Client) -> None:
        service = next(names)
        work = await client.work(service, credit=2)
        for number, (asked, taken, answered) in enumerate(steps):
            question = b"%d" % number
            replies = await cut(client.request(service, "a", question, timeout=PATIENCE), asked)
            if replies is None:
                continue
            request = await cut(work.receive(PATIENCE), taken) or await work.receive(PATIENCE)
            # One that was cancelled may have been sent before.
            while request.body != question:
                await request.reply()
                request = await work.receive(PATIENCE)
            await cut(anext(replies), 0)
            await cut(request.reply(b"!"), answered)
            if not request.settled:
                await request.reply(b"!")
            if not (reply := await cut(anext(replies), taken)):
                reply = await anext(replies)
            assert reply.body == b"!"
            assert [reply async for reply in replies] == []
        work.cancel()
        assert not client._session.pending_replies

    play(program)


@some
@given(st.lists(st.tuples(st.sampled_from(["query", "subscribe", "work", "flush"]), cuts), max_size=20))
def test_a_cancelled_question_leaves_nothing_behind(play, steps):
    async def program(client: malamute.aio.Client) -> None:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "query": lambda: client.query("status"),
            "subscribe": lambda: client.subscribe("s"),
            "work": lambda: client.work("svc"),
            "flush": lambda: done(client.flush()),
        }
        for step, at in steps:
            result = await cut(calls[step](), at)
            if step in ("subscribe", "work") and result is not None:
                result.cancel()
        await client.flush()
        session = client._session
        assert not session.inbox._sources
        assert not [*session.questions.asked()]
        assert not client._driver._waits

    play(program)


def test_many_tasks_share_one_subscription(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        messages = await client.subscribe(stream, credit=20)
        seen: list[int] = []

        async def subscriber() -> None:
            async for message in messages:
                seen.append(message.sequence)
                if len(seen) == 300:
                    messages.cancel()

        async def publisher() -> None:
            for _ in range(100):
                await client.publish(stream, "a", b"")

        await asyncio.gather(*(subscriber() for _ in range(5)), *(publisher() for _ in range(3)))
        assert sorted(seen) == list(range(1, 301))

    play(program)


def test_many_tasks_share_one_offer_and_ask_over_one_client(play):
    async def program(client: malamute.aio.Client) -> None:
        service = next(names)
        work = await client.work(service, credit=20)

        async def worker() -> None:
            async for request in work:
                await request.reply(request.body)

        async def asker(name: int) -> list[bytes]:
            asked = [client.request(service, "a", b"%d %d" % (name, n)) for n in range(20)]
            return [reply.body for replies in asked async for reply in replies]

        workers = [asyncio.create_task(worker()) for _ in range(5)]
        answers = await asyncio.gather(*(asker(n) for n in range(10)))
        work.cancel()
        await asyncio.gather(*workers)
        assert answers == [[b"%d %d" % (n, m) for m in range(20)] for n in range(10)]

    play(program)


def test_no_task_and_no_future_is_made_for_a_message(play, monkeypatch):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        async with client.publisher(stream) as out:
            await out.publish_many(["a"] * 20_000, [b"x"] * 20_000)
        loop = asyncio.get_running_loop()
        made = 0

        class Counted(dict[Any, Any]):
            def __setitem__(self, future: Any, wait: Any) -> None:
                nonlocal made
                made += 1
                super().__setitem__(future, wait)

        monkeypatch.setattr(client._driver, "_waits", Counted())
        tasks: list[object] = []
        loop.set_task_factory(lambda loop, call, **more: tasks.append(call) or asyncio.Task(call, loop=loop))
        count = 0
        async for _ in await client.subscribe(stream, start="first"):
            count += 1
            if count == 20_000:
                break
        assert tasks == []
        assert made <= 200

    play(program)


def test_a_busy_subscriber_lets_the_other_tasks_continue(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        async with client.publisher(stream) as out:
            await out.publish_many(["a"] * 10_000, [b""] * 10_000)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        messages = await client.subscribe(stream, start="first", credit=-1)
        for _ in range(10_000):
            await anext(messages)
        assert ticks >= 10
        ticking.cancel()

    play(program)


def test_what_lingers_is_sent_without_another_call(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        async with malamute.aio.connect(client.url, timeout=PATIENCE) as other:
            messages = await other.subscribe(stream)
            out = client.publisher(stream, assurance="none", linger=0.01)
            await out.publish("a", b"1")
            await out.publish("a", b"2")
            assert [(await messages.receive(PATIENCE)).body for _ in range(2)] == [b"1", b"2"]
        await out.close()

    play(program)


def test_what_lingers_does_not_wait_for_something_that_may_wait_longer(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        async with malamute.aio.connect(client.url, timeout=PATIENCE) as other:
            messages = await other.subscribe(stream)
            patient = client.publisher(stream, assurance="none", linger=PATIENCE)
            hasty = client.publisher(stream, assurance="none", linger=0.01)
            for out in (patient, patient, hasty, hasty):
                await out.publish("a", b"")
            assert len([await messages.receive(PATIENCE / 2) for _ in range(4)]) == 4
        await patient.close()
        await hasty.close()

    play(program)


def test_what_lingers_and_finds_no_room_is_sent_when_there_is_some(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        async with malamute.aio.connect(client.url, timeout=PATIENCE) as other:
            messages = await other.subscribe(stream)
            out = client.publisher(stream, assurance="none", linger=0.01)
            await out.publish("a", b"1")
            await out.publish("a", b"2")
            outbox = client._session.outbox
            outbox.window_bytes, window_bytes = 0, outbox.window_bytes
            outbox.flow.sent += 10 * window_bytes
            await asyncio.sleep(0.1)
            outbox.window_bytes = window_bytes
            outbox.flow.sent += -10 * window_bytes
            assert [(await messages.receive(PATIENCE)).body for _ in range(2)] == [b"1", b"2"]
        await out.close()

    play(program)


def test_the_cursor_of_a_handler_moves_while_more_messages_wait(play):
    async def program(client: malamute.aio.Client) -> None:
        stream = next(names)
        await client.publish_batch(stream, ["a"] * 100, [b""] * 100)
        first, moved = asyncio.Event(), asyncio.Event()

        @client.subscription(stream, start="first", cursor="c")
        async def handle(message: malamute.Message) -> None:
            if message.sequence == 10:
                first.set()
                await moved.wait()

        async with malamute.aio.connect(client.url, timeout=PATIENCE) as other:
            running = asyncio.create_task(client.run())
            async with asyncio.timeout(PATIENCE):
                await first.wait()
                while (await other.query("cursors", stream=stream))[0]["sequence"] < 9:
                    await asyncio.sleep(0.01)
            moved.set()
            client.stop()
            await running

    play(program)


def test_a_broken_connection_reconnects_while_no_call_is_under_way(tmp_path):
    async def program() -> None:
        with Broker(tmp_path) as broker:
            async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
                events: asyncio.Queue[Any] = asyncio.Queue()
                client.on_event = events.put_nowait
                await asyncio.get_running_loop().run_in_executor(None, broker.restart)
                async with asyncio.timeout(PATIENCE):
                    assert isinstance(await events.get(), Lost)
                    assert isinstance(await events.get(), Connected)

    asyncio.run(program())


def test_an_event_handler_that_fails_is_reported_to_the_loop_and_harms_nothing(broker):
    async def program() -> None:
        told: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.put_nowait(context))

        def fail(event: object) -> None:
            raise ValueError(str(event))

        async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
            messages = await client.subscribe("s")
            client.on_event = fail
            await client.publish_nowait("$s", "a", b"")
            async with asyncio.timeout(PATIENCE):
                context = await told.get()
            client.on_event = lambda event: None
            await client.publish("s", "a", b"")
            await messages.receive(PATIENCE)
        assert isinstance(context["exception"], ValueError)

    asyncio.run(program())


def test_another_thread_is_refused(play):
    async def program(client: malamute.aio.Client) -> None:
        caught: list[Exception] = []

        def use() -> None:
            try:
                asyncio.run(client.query("status"))
            except errors.LinkError as error:
                caught.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert "another thread" in str(caught[0])

    play(program)


def test_closing_notifies_everybody_who_waits(play):
    async def program(client: malamute.aio.Client) -> None:
        messages = await client.subscribe(next(names))
        waiting = [asyncio.create_task(messages.receive()) for _ in range(3)]
        waiting.append(asyncio.create_task(anext(messages)))
        await asyncio.sleep(0)
        await client.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {errors.Closed}

    play(program)


def test_no_broker_is_a_connect_timeout():
    async def program() -> None:
        with pytest.raises(errors.ConnectTimeout, match=r"tcp://127\.0\.0\.1:1, tcp://127\.0\.0\.1:2"):
            await malamute.aio.connect("tcp://127.0.0.1:1,tcp://127.0.0.1:2", timeout=0.05)

    asyncio.run(program())


def test_the_blocking_client_does_not_import_asyncio():
    code = "import sys, malamute; malamute.connect; print('asyncio' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
