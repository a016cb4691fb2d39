"""taskiq on Malamute: what tasks, results, schedules and dead letters are at the broker.

The behaviours of the tests of taskiq-redis are among these, in words of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

taskiq = pytest.importorskip("taskiq", reason="taskiq is not installed: see the extra taskiq")

from taskiq import Context, InMemoryBroker, SimpleRetryMiddleware, TaskiqDepends  # noqa: E402
from taskiq.acks import AcknowledgeType  # noqa: E402
from taskiq.depends.progress_tracker import ProgressTracker, TaskState  # noqa: E402
from taskiq.exceptions import ResultGetError, SendTaskError  # noqa: E402
from taskiq.receiver import Receiver  # noqa: E402
from taskiq.serializers import PickleSerializer  # noqa: E402

import malamute  # noqa: E402
from malamute import InvalidValue  # noqa: E402
from malamute.integrations.taskiq import (  # noqa: E402
    DeadLetters,
    MalamuteBroker,
    MalamuteResultBackend,
    MalamuteScheduleSource,
)
from malamute.testing import Broker  # noqa: E402

PATIENCE = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


class App:
    """A broker of taskiq with names of its own, and workers in this process."""

    def __init__(self, url: str, **options: Any) -> None:
        self.prefix = f"{uuid4().hex[:8]}."
        self.url = url
        self.results = MalamuteResultBackend[Any](url, prefix=self.prefix)
        self.broker = MalamuteBroker(url, prefix=self.prefix, **options).with_result_backend(self.results)
        self.box = f"{self.prefix}taskiq"

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncGenerator[None, None]:
        """A worker."""
        end = asyncio.Event()
        receiver = Receiver(self.broker, max_async_tasks=10, run_startup=False, **options)
        work = asyncio.create_task(receiver.listen(end))
        try:
            yield
        finally:
            end.set()
            await work

    @property
    def client(self) -> malamute.aio.Client:
        return self.broker.client

    async def count(self, box: str = "") -> dict[str, Any]:
        found: dict[str, Any] = await self.client.query("mailbox", name=box or self.box)
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the counts of the queue as soon as they are so."""
        async with asyncio.timeout(PATIENCE):
            while not holds(found := await self.count()):
                await asyncio.sleep(0.01)
        return found


def run(main: Callable[[App], Awaitable[None]], url: str, **options: Any) -> App:
    app = App(url, **options)

    async def whole() -> None:
        try:
            await main(app)
        finally:
            await app.broker.shutdown()

    asyncio.run(whole())
    return app


def test_a_task_runs_and_has_its_result_and_is_acknowledged(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("add")
        async def add(a: int, b: int) -> int:
            return a + b

        await app.broker.startup()
        asked = [await add.kiq(n, b=1) for n in range(3)]
        mail = await app.client.query("message", kind="mailbox", name=app.box, sequence=1)
        assert mail["subject"] == "add"
        assert mail["properties"]["correlation"] == asked[0].task_id
        async with app.working():
            found = [(await one.wait_result(timeout=PATIENCE, check_interval=0.01)) for one in asked]
        assert [one.return_value for one in found] == [1, 2, 3]
        assert not any(one.is_err for one in found)
        await app.until(lambda counts: counts["messages"] == 0)

    run(main, url)


def test_the_error_of_a_task_is_its_result(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("fail")
        def fail() -> None:
            raise ValueError("no such thing")

        await app.broker.startup()
        async with app.working():
            found = await (await fail.kiq()).wait_result(timeout=PATIENCE, check_interval=0.01)
        assert found.is_err
        assert isinstance(found.error, ValueError)
        assert found.log is None

    run(main, url)


def test_labels_are_options_of_the_message(url: str) -> None:
    async def main(app: App) -> None:
        order: list[int] = []

        @app.broker.task("note", priority=3)
        async def note(number: int) -> None:
            order.append(number)

        await app.broker.startup()
        await note.kiq(1)
        await note.kicker().with_labels(priority=9).kiq(2)
        await note.kicker().with_labels(queue_name="other", key="a", ttl=60).kiq(3)
        later = await note.kicker().with_labels(delay=0.2, priority=9).kiq(4)
        other = f"{app.prefix}other"
        mail = await app.client.query("message", kind="mailbox", name=other, sequence=1)
        assert {"key": "a", "ttl": 60_000}.items() <= mail["properties"].items()
        assert (await app.count())["delayed"] == 1
        async with app.working():
            await later.wait_result(timeout=PATIENCE, check_interval=0.01)
        assert order == [2, 1, 4]
        assert (await app.count(other))["ready"] == 1

    run(main, url, credit=1)


def test_a_worker_may_consume_from_several_queues(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("echo")
        async def echo(text: str) -> str:
            return text

        await app.broker.startup()
        async with app.working():
            for queue in ("fast", "slow"):
                sent = await echo.kicker().with_labels(queue_name=queue).kiq(queue)
                assert (await sent.wait_result(timeout=PATIENCE, check_interval=0.01)).return_value == queue

    run(main, url, queues=["fast", "slow"])


@pytest.mark.parametrize(
    ("label", "value", "expected"),
    [
        ("priority", 10, "0 to 9"),
        ("priority", -1, "0 to 9"),
        ("priority", "high", "0 to 9"),
        ("delay", -0.1, "seconds"),
        ("delay", "nan", "seconds"),
        ("ttl", 0, "seconds above 0"),
        ("key", "", "1 to 255 bytes"),
        ("key", "é" * 128, "1 to 255 bytes"),
        ("queue_name", "", "name of a queue"),
        ("queue_name", "a\n", "a name is"),
    ],
)
def test_a_bad_label_is_refused_when_a_task_is_sent(url: str, label: str, value: Any, expected: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("noop")
        async def noop() -> None: ...

        await app.broker.startup()
        with pytest.raises(SendTaskError) as refused:
            await noop.kicker().with_labels(**{label: value}).kiq()
        assert isinstance(refused.value.__cause__, malamute.MalamuteError)
        words = f"{refused.value.__cause__} {refused.value.__cause__.hint}"
        assert label in words or "name" in words
        assert expected in words
        assert app.box not in [row["name"] for row in await app.client.query("mailboxes")]

    run(main, url)


def test_a_bad_label_of_a_decorator_is_refused_at_the_start(url: str) -> None:
    async def main(app: App) -> None:
        app.broker.task("noop", priority=12)(lambda: None)
        with pytest.raises(InvalidValue, match=r"label priority=12: expected a whole number from 0 to 9"):
            await app.broker.startup()

    run(main, url)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda url: MalamuteBroker(url, assurance="confirmed"), "'stored' or 'none'"),
        (lambda url: MalamuteBroker(url, queues="taskiq"), r"such as \['taskiq'\]"),
        (lambda url: MalamuteBroker(url, tiemout=1), "unknown option 'tiemout'.*timeout"),
        (lambda url: MalamuteBroker("redis://h"), "redis"),
        (lambda url: MalamuteResultBackend(url, result_ttl=0), "above 0, or None"),
        (lambda url: DeadLetters(0), "from 1 on"),
        (lambda url: DeadLetters(1, delay=-1), "0 or more"),
        (lambda url: InMemoryBroker().add_middlewares(DeadLetters()), "a MalamuteBroker"),
        (lambda url: MalamuteScheduleSource(InMemoryBroker()), "a MalamuteBroker"),
    ],
)
def test_a_bad_option_is_refused_at_the_start(url: str, make: Callable[[str], Any], expected: str) -> None:
    async def main() -> None:
        await make(url).startup()

    with pytest.raises(malamute.MalamuteError, match=expected):
        asyncio.run(main())


def test_arguments_that_are_no_json_and_too_large_ones_are_refused_at_once(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("noop")
        async def noop(value: Any) -> None: ...

        with pytest.raises(SendTaskError) as refused:
            await noop.kiq(1)
        assert "startup" in str(refused.value.__cause__)
        await app.broker.startup()
        for value in (object(), "a" * 5_000_000):
            with pytest.raises(SendTaskError):
                await noop.kiq(value)
        assert app.box not in [row["name"] for row in await app.client.query("mailboxes")]

    run(main, url)


def test_a_broker_that_is_away_is_the_error_of_taskiq_in_time() -> None:
    async def main(app: App) -> None:
        @app.broker.task("noop")
        async def noop() -> None: ...

        await app.broker.startup()
        await asyncio.to_thread(server.stop)
        with pytest.raises(SendTaskError):
            await noop.kiq()
        await asyncio.to_thread(server.start)
        await app.client.flush(PATIENCE)

    with Broker() as server:
        run(main, server.url, timeout=0.3)


def test_messages_that_are_no_task_and_unknown_tasks_are_dead_letters(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("noop")
        async def noop() -> None: ...

        await app.broker.startup()
        await app.client.send(app.box, "noise", b"\xff")
        await app.client.send(app.box, "noise", b'{"task": 1}')
        await noop.kicker().with_broker(app.broker).with_labels().kiq()
        stranger = noop.kicker()
        stranger.task_name = "unknown.task"
        await stranger.kiq()
        async with app.working():
            counts = await app.until(lambda counts: counts["dead_letters"] == 3)
            await app.until(lambda counts: counts["messages"] == 0)
        assert counts["dead_letters"] == 3
        dead = await app.client.query("messages", kind="mailbox", name=app.box, dead=True)
        assert "unknown task 'unknown.task'" in str(dead)

    run(main, url)


def test_a_requeue_is_another_run_and_is_not_delayed_again(url: str) -> None:
    async def main(app: App) -> None:
        runs: list[dict[str, Any]] = []

        @app.broker.task("again")
        async def again(context: Context = TaskiqDepends()) -> int:  # noqa: B008
            runs.append({**context.message.labels})
            if len(runs) < 3:
                await context.requeue()
            return len(runs)

        await app.broker.startup()
        async with app.working():
            sent = await again.kicker().with_labels(delay=0.05).kiq()
            found = await sent.wait_result(timeout=PATIENCE, check_interval=0.01)
        assert found.return_value == 3
        assert (await app.count())["delayed"] == 0

    run(main, url)


def test_a_task_kicked_twice_under_one_id_runs_once(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("noop")
        async def noop() -> None: ...

        await app.broker.startup()
        for _ in range(2):
            await noop.kicker().with_task_id("the-same").kiq()
        assert (await app.count())["ready"] == 1

    run(main, url)


def test_retries_of_taskiq_are_further_runs(url: str) -> None:
    async def main(app: App) -> None:
        runs: list[int] = []
        app.broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))

        @app.broker.task("sometimes", retry_on_error=True)
        async def sometimes() -> int:
            runs.append(1)
            if len(runs) < 3:
                raise ValueError
            return len(runs)

        await app.broker.startup()
        async with app.working():
            found = await (await sometimes.kiq()).wait_result(timeout=PATIENCE, check_interval=0.01)
        assert found.return_value == 3

    run(main, url)


def test_a_failed_task_is_tried_again_and_then_is_a_dead_letter_with_its_result(url: str) -> None:
    async def main(app: App) -> None:
        runs: list[int] = []
        app.broker.add_middlewares(DeadLetters(max_tries=3, delay=0))

        @app.broker.task("fail")
        async def fail() -> None:
            runs.append(1)
            raise ValueError("not today")

        @app.broker.task("refuse")
        async def refuse(context: Context = TaskiqDepends()) -> None:  # noqa: B008
            context.reject()

        await app.broker.startup()
        async with app.working():
            found = await (await fail.kiq()).wait_result(timeout=PATIENCE, check_interval=0.01)
            assert str(found.error) == "not today"
            assert len(runs) == 3
            await app.until(lambda counts: counts["dead_letters"] == 1)
            await (await refuse.kiq()).wait_result(timeout=PATIENCE, check_interval=0.01)
            await app.until(lambda counts: counts["dead_letters"] == 2)

    run(main, url)


@pytest.mark.parametrize("ack", [AcknowledgeType.WHEN_EXECUTED, AcknowledgeType.MANUAL])
def test_a_dead_letter_does_not_depend_on_when_a_task_is_acknowledged(url: str, ack: AcknowledgeType) -> None:
    async def main(app: App) -> None:
        app.broker.add_middlewares(DeadLetters(max_tries=1))

        @app.broker.task("fail")
        async def fail() -> None:
            raise ValueError

        await app.broker.startup()
        async with app.working(ack_type=ack):
            await fail.kiq()
            await app.until(lambda counts: counts["dead_letters"] == 1)

    run(main, url)


def test_a_worker_that_ends_takes_no_more_and_finishes_what_it_has(url: str) -> None:
    async def main(app: App) -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @app.broker.task("hold")
        async def hold() -> str:
            begun.set()
            await go.wait()
            return "done"

        await app.broker.startup()
        first, second = await hold.kiq(), await hold.kiq()
        async with app.working(max_tasks_to_execute=1):
            await begun.wait()
            await app.until(lambda counts: counts["ready"] == 1)
            go.set()
        assert (await first.get_result()).return_value == "done"
        assert not await second.is_ready()
        counts = await app.until(lambda counts: counts["in_flight"] == 0)
        assert counts["ready"] == 1

    run(main, url)


def test_progress_and_results_of_other_types(url: str) -> None:
    async def main(app: App) -> None:
        seen = asyncio.Event()

        @app.broker.task("slow")
        async def slow(progress: ProgressTracker[Any] = TaskiqDepends()) -> None:  # noqa: B008
            await progress.set_progress("half", 0.5)
            await seen.wait()
            await progress.set_progress(TaskState.SUCCESS)

        await app.broker.startup()
        assert await app.results.get_progress("none") is None
        with pytest.raises(ResultGetError):
            await app.results.get_result("none")
        async with app.working():
            sent = await slow.kiq()
            async with asyncio.timeout(PATIENCE):
                while (found := await sent.get_progress()) is None:
                    await asyncio.sleep(0.01)
            assert (found.state, found.meta) == ("half", 0.5)
            seen.set()
            await sent.wait_result(timeout=PATIENCE, check_interval=0.01)
        last = await sent.get_progress()
        assert last is not None
        assert (last.state, last.meta) == ("SUCCESS", 0.5)

        pickled = MalamuteResultBackend[Any](url, prefix=app.prefix, serializer=PickleSerializer())
        await pickled.startup()
        made = taskiq.TaskiqResult(is_err=False, return_value={1, 2}, execution_time=0.1, log="a line")
        await pickled.set_result("set", made)
        assert (await pickled.get_result("set")).return_value == {1, 2}
        assert (await pickled.get_result("set", with_logs=True)).log == "a line"
        assert (await pickled.get_result("set")).log is None
        await pickled.shutdown()

    run(main, url)


def test_a_result_that_cannot_be_saved_is_an_error_and_not_lost(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("odd")
        async def odd(size: int) -> Any:
            return "a" * size if size else object()

        await app.broker.startup()
        async with app.working():
            for size in (0, 2_000_000):
                found = await (await odd.kiq(size)).wait_result(timeout=PATIENCE, check_interval=0.01)
                assert "cannot be saved" in str(found.error)

    run(main, url)


def test_results_are_gone_after_their_time(url: str) -> None:
    async def main(app: App) -> None:
        await app.broker.startup()
        results = MalamuteResultBackend[Any](url, prefix=app.prefix, result_ttl=0.05)
        await results.startup()
        await results.set_result("a", taskiq.TaskiqResult(is_err=False, return_value=1, execution_time=0))
        async with asyncio.timeout(PATIENCE):
            while await results.is_result_ready("a"):
                await asyncio.sleep(0.01)
        await results.shutdown()

    run(main, url)


def test_a_schedule_with_a_time_is_a_delayed_message_that_can_be_taken_back(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("at")
        async def at(number: int) -> int:
            return number

        source = MalamuteScheduleSource(app.broker, prefix=app.prefix)
        await app.broker.startup()
        await source.startup()
        year = datetime.now(UTC) + timedelta(days=365)
        made = await at.kicker().with_schedule_id("yearly").schedule_by_time(source, year, 1)
        assert (await app.count())["delayed"] == 1
        assert await source.get_schedules() == []
        # The same id again replaces it, and deleting it is enough to add it again at once.
        await at.kicker().with_schedule_id("yearly").schedule_by_time(source, year, 2)
        assert (await app.count())["delayed"] == 1
        await made.unschedule()
        assert (await app.count())["delayed"] == 0
        await source.delete_schedule("yearly")
        soon = datetime.now(UTC) + timedelta(seconds=0.1)
        async with app.working():
            await at.kicker().with_schedule_id("yearly").with_task_id("7").schedule_by_time(source, soon, 3)
            async with asyncio.timeout(PATIENCE):
                while not await app.results.is_result_ready("7"):
                    await asyncio.sleep(0.01)
        assert (await app.results.get_result("7")).return_value == 3

    run(main, url)


def test_a_schedule_of_a_year_survives_a_restart_and_another_program_takes_it_back(tmp_path: Path) -> None:
    year = datetime.now(UTC) + timedelta(days=365)

    def app_of(url: str, act: Callable[[App, Any, MalamuteScheduleSource], Awaitable[None]]) -> None:
        async def main(app: App) -> None:
            app.broker = MalamuteBroker(url)
            await app.broker.startup()

            @app.broker.task("at")
            async def at() -> None: ...

            await act(app, at, MalamuteScheduleSource(app.broker))
            assert (await app.count("taskiq"))["delayed"] == (0 if restarted else 1)

        run(main, url)

    async def add(app: App, at: Any, source: MalamuteScheduleSource) -> None:
        await at.kicker().with_schedule_id("yearly").schedule_by_time(source, year)

    async def take_back(app: App, at: Any, source: MalamuteScheduleSource) -> None:
        assert (await app.count("taskiq"))["delayed"] == 1
        await source.delete_schedule("yearly")

    restarted = False
    with Broker(tmp_path / "data") as server:
        app_of(server.url, add)
        server.restart()
        restarted = True
        app_of(server.url, take_back)


def test_recurring_schedules_are_kept_and_deleted(url: str) -> None:
    async def main(app: App) -> None:
        @app.broker.task("often")
        async def often() -> None: ...

        source = MalamuteScheduleSource(app.broker, prefix=app.prefix)
        await source.startup()
        first = await often.schedule_by_cron(source, "*/5 * * * *")
        await asyncio.gather(*(often.schedule_by_interval(source, timedelta(minutes=1)) for _ in range(5)))
        assert len(await source.get_schedules()) == 6
        await first.unschedule()
        found = await source.get_schedules()
        assert [one.interval for one in found] == [timedelta(minutes=1)] * 5
        # A scheduler kicks the same task id each time: each is a run of its own.
        scheduler = taskiq.TaskiqScheduler(app.broker, [source])
        for _ in range(2):
            await scheduler.on_ready(source, found[0].model_copy(update={"task_id": "same"}))
        assert (await app.count())["ready"] == 2

    run(main, url)
