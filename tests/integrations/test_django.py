"""Django Tasks on Malamute: enqueueing, results, retries, and what is refused.

The behaviours of Django's tests of its immediate backend are among these, in words of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

django = pytest.importorskip("django", reason="django is not installed: see the extra django")
with pytest.MonkeyPatch.context() as patch:  # other tests start programs that are none of Django's
    patch.setenv("DJANGO_SETTINGS_MODULE", "django_program")
    django.setup()

import django_program_tasks as tasks  # noqa: E402
from asgiref.sync import async_to_sync  # noqa: E402
from depth import NIGHT  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

import malamute  # noqa: E402
from malamute.access.rule import AccessRule  # noqa: E402
from malamute.config import AccessConfig  # noqa: E402
from malamute.integrations.django import MalamuteBackend, TaskNotEnqueued  # noqa: E402
from malamute.integrations.django.contract import (  # noqa: E402
    InvalidTask,
    TaskException,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from malamute.integrations.django.worker import TaskWorker  # noqa: E402
from malamute.testing import Broker, small_config  # noqa: E402

PATIENCE = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


def configured(url: str, /, queues: Any = ("default", "slow"), **options: Any) -> AbstractContextManager[Any]:
    """Settings with queues of their own."""
    given = {"url": url, "prefix": f"{uuid4().hex[:8]}.", "connect": {"timeout": PATIENCE}, **options}
    backend = "malamute.integrations.django.MalamuteBackend"
    settings: AbstractContextManager[Any] = override_settings(
        TASKS={"default": {"BACKEND": backend, "QUEUES": list(queues), "OPTIONS": given}}
    )
    return settings


def backend() -> MalamuteBackend:
    found: MalamuteBackend = task_backends["default"]
    return found


def counts(queue: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = backend().client.query("mailbox", name=backend().mailbox(queue))
    return found


def work(queue: str = "default", max_tasks: int | None = None) -> None:
    TaskWorker("default", queue, burst=True, max_tasks=max_tasks).run()


def until(holds: Callable[[], object]) -> None:
    with malamute.connect(backend().url) as client:
        while not holds():
            client.ping()


def test_a_task_is_ready_then_successful(url: str) -> None:
    with configured(url):
        asked = [tasks.add.enqueue(1, b=3), tasks.add_async.enqueue(4), async_to_sync(tasks.add.aenqueue)(5)]
        for result in asked:
            assert result.status == TaskResultStatus.READY
            assert result.enqueued_at is not None
            assert not result.is_finished
            again = backend().get_result(result.id)
            assert (again.id, again.args, again.kwargs) == (result.id, result.args, result.kwargs)
            assert again.task.func == result.task.func
        with pytest.raises(ValueError, match="not finished"):
            _ = asked[0].return_value
        assert counts()["ready"] == 3
        work()
        for result, value in zip(asked, (4, 5, 6), strict=True):
            result.refresh()
            assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, value)
            assert result.enqueued_at <= result.started_at <= result.finished_at
            assert result.last_attempted_at == result.started_at
            assert result.attempts == 1
        async_to_sync(asked[0].arefresh)()
        assert tasks.add.get_result(asked[0].id).return_value == 4
        assert counts()["messages"] == 0


@pytest.mark.parametrize("kind", ["ValueError", "SystemExit"])
def test_the_error_of_a_task_is_its_result(url: str, kind: str) -> None:
    with configured(url):
        result = tasks.fail.enqueue(kind)
        work()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class.__name__ == kind
        assert result.errors[0].traceback.endswith(f"{kind}: This task failed\n")
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
        assert counts()["messages"] == 0


def test_a_keyboard_interrupt_leaves_the_task_to_another_worker(url: str) -> None:
    with configured(url):
        result = tasks.fail.enqueue("KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            work()
        until(lambda: counts()["ready"] == 1)
        result.refresh()
        assert not result.is_finished


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_a_result_that_is_no_json_or_too_large_is_an_error(url: str, size: int) -> None:
    with configured(url):
        result = tasks.odd.enqueue(size)
        work()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class is (malamute.TooLarge if size else TypeError)
        assert result._return_value is None


def test_a_context_has_the_attempt_and_retries_follow_the_backoff(url: str) -> None:
    with configured(url, retries=[0, 0.01]):
        tasks.ran.clear()
        context, failed = tasks.context_of.enqueue(), tasks.fail.enqueue()
        work(max_tasks=2)
        context.refresh()
        assert context.return_value == [context.id, 1]
        failed.refresh()
        assert failed.status == TaskResultStatus.READY
        assert (failed.attempts, len(failed.errors)) == (1, 1)
        for _ in range(2):
            until(lambda: counts()["ready"] == 1)
            work()
        failed.refresh()
        assert failed.status == TaskResultStatus.FAILED
        assert (failed.attempts, len(failed.errors), len(tasks.ran)) == (3, 3, 3)


def test_priorities_are_steps_of_the_broker_and_queues_are_apart(url: str) -> None:
    with configured(url):
        tasks.ran.clear()
        for priority in (-100, 0, 100, 99, -78):
            tasks.note.using(priority=priority).enqueue(priority)
        tasks.note.using(queue_name="slow").enqueue("slow")
        messages = [
            backend().client.query("message", kind="mailbox", name=backend().mailbox("default"), sequence=n)
            for n in range(1, 6)
        ]
        assert [row["properties"].get("priority", 0) for row in messages] == [0, 4, 9, 8, 0]
        assert {row["subject"] for row in messages} == {"django_program_tasks.note"}
        work()
        assert tasks.ran == [100, 99, 0, -100, -78]
        work("slow")
        assert tasks.ran[-1] == "slow"


def test_a_task_does_not_run_before_its_time(url: str) -> None:
    with configured(url):
        tasks.ran.clear()
        tasks.note.using(run_after=timezone.now() + timedelta(days=365)).enqueue("in a year")
        soon = tasks.note.using(run_after=timezone.now() + timedelta(seconds=0.2)).enqueue("soon")
        assert counts()["delayed"] == 2
        work()
        assert tasks.ran == []
        until(lambda: counts()["ready"] == 1)
        work()
        assert tasks.ran == ["soon"]
        soon.refresh()
        assert soon.finished_at >= soon.task.run_after
    with configured(url), override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        past = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=8)
        tasks.note.using(run_after=past).enqueue("an hour ago in Tokyo")
        assert counts()["ready"] == 1


def test_threads_enqueue_over_one_client(url: str) -> None:
    with configured(url):
        count = 1000 if NIGHT else 40
        with ThreadPoolExecutor(count) as threads:
            results = list(threads.map(tasks.note.enqueue, range(count)))
        assert len({result.id for result in results}) == counts()["ready"] == count


def test_signals_are_sent_once_each(url: str) -> None:
    seen: list[tuple[str, str]] = []

    def hear(name: str) -> Callable[..., None]:
        return lambda sender, task_result, **_: seen.append((name, str(task_result.status)))

    hearers = [
        (task_enqueued, hear("enqueued")),
        (task_started, hear("started")),
        (task_finished, hear("finished")),
    ]
    for signal, function in hearers:
        signal.connect(function)
    try:
        with configured(url, retries=[0]):
            tasks.add.enqueue(1)
            work()
            tasks.fail.enqueue()
            work()
            while counts()["messages"]:
                work()
    finally:
        for signal, function in hearers:
            signal.disconnect(function)
    success = [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    started = ("started", "RUNNING")
    assert seen == [*success, ("enqueued", "READY"), started, started, ("finished", "FAILED")]


def test_on_commit_sends_with_the_commit_alone(url: str) -> None:
    with configured(url, on_commit=True):
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            with pytest.raises(TaskResultDoesNotExist):
                result.refresh()
            with pytest.raises(TypeError):
                tasks.add.enqueue(object())
        assert counts()["ready"] == 1
        with transaction.atomic():
            tasks.add.enqueue(1)
            transaction.set_rollback(True)
        assert counts()["ready"] == 1
        work()
        result.refresh()
        assert result.return_value == 2


def test_results_are_gone_after_their_time_and_unknown_ones_are_the_error_of_django(url: str) -> None:
    with configured(url, result_ttl=0.05):
        result = tasks.add.enqueue(1)
        work()

        def gone() -> bool:
            try:
                result.refresh()
            except TaskResultDoesNotExist:
                return True
            return False

        until(gone)
        for unknown in ("", "none", "a\n", "é" * 300):
            with pytest.raises(TaskResultDoesNotExist):
                backend().get_result(unknown)


def test_messages_that_are_no_task_are_dead_letters(url: str) -> None:
    with configured(url):
        box = backend().mailbox("default")
        asked = tasks.add.enqueue(1)
        body = backend().client.query("message", kind="mailbox", name=box, sequence=1)["body"]
        for old, new in ((b"tasks.add", b"tasks.plain"), (b"tasks.add", b"tasks.gone"), (b"{", b"\xff")):
            backend().client.send(box, "noise", bytes(body).replace(old, new))
        work()
        until(lambda: counts()["dead_letters"] == 3)
        assert counts()["messages"] == 0
        asked.refresh()
        assert asked.return_value == 2


def test_arguments_and_options_of_a_task_that_are_refused(url: str) -> None:
    with configured(url):
        with pytest.raises(TypeError):
            tasks.add.enqueue(object())
        for options in (
            {"priority": 101},
            {"priority": 1.5},
            {"queue_name": "unknown"},
            {"run_after": datetime(2030, 1, 1)},
        ):
            with pytest.raises(InvalidTask):
                tasks.add.using(**options).enqueue(1)
        with pytest.raises(TaskNotEnqueued, match="413") as refused:
            tasks.note.enqueue("a" * 5_000_000)
        assert isinstance(refused.value, TaskException)
        assert isinstance(refused.value.__cause__, malamute.TooLarge)
        names = [row["name"] for row in backend().client.query("mailboxes")]
        assert backend().mailbox("default") not in names


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"adress": "x"}, "unknown option 'adress': expected url, prefix, result_ttl, retries, on_commit"),
        ({"url": ""}, "expected a URL"),
        ({"prefix": 1}, "expected text"),
        ({"result_ttl": 0}, "above 0, or None"),
        ({"result_ttl": True}, "above 0, or None"),
        ({"retries": 3}, r"such as \[1, 10, 60\]"),
        ({"retries": [1, -1]}, r"such as \[1, 10, 60\]"),
        ({"on_commit": 1}, "True or False"),
        ({"connect": {"threads": "one"}}, "without threads"),
    ],
)
def test_a_bad_option_is_refused_at_the_start(options: dict[str, Any], expected: str) -> None:
    with configured("tcp://127.0.0.1:1", **options), pytest.raises(ImproperlyConfigured, match=expected):
        backend()


@pytest.mark.parametrize(
    ("url", "expected"), [("redis://h", "E001"), ("tcp://127.0.0.1:1", "W001"), ("malamute://h/x", "E001")]
)
def test_a_check_names_a_broker_that_cannot_be_reached(url: str, expected: str) -> None:
    with configured(url, connect={"timeout": 0.05}):
        (found,) = backend().check()
        assert found.id == f"malamute.{expected}"
        with pytest.raises(TaskNotEnqueued):
            tasks.add.enqueue(1)


def test_a_check_names_missing_rights(url: str) -> None:
    with configured(url):
        assert [*backend().check()] == []
        names = [row["name"] for row in backend().client.query("mailboxes")]
        assert backend().mailbox("default") not in names
    rules = tuple(map(AccessRule.parse, ["send,create mailbox/app.default", "read bucket/app.results"]))
    config = replace(small_config(), access=AccessConfig(rules=rules))
    with Broker(config=config) as broker, configured(broker.url, prefix="app."):
        found = [*backend().check()]
    assert [one.id for one in found] == ["malamute.E002"] * 2
    assert "bucket" in str(found[0])
    assert "app.slow" in str(found[1])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "other"}, "unknown backend 'other': expected default"),
        ({"queue": ["default", "x"]}, "queue 'x' is not in QUEUES: expected default, slow"),
        ({"concurrency": 0}, "invalid --concurrency 0"),
        ({"max_tasks": 0}, "invalid --max-tasks 0"),
    ],
)
def test_the_command_refuses_bad_options(url: str, options: dict[str, Any], expected: str) -> None:
    with configured(url), pytest.raises(CommandError, match=expected):
        call_command("malamute_worker", skip_checks=True, **options)
