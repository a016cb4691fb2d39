"""`malamute work`: commands that take long, that write much, and that leave their input alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_commands import Run, Start
from depth import some

import malamute
from malamute.cli.work import ERROR_CHARACTERS, Conversation
from malamute.config import Config
from malamute.testing import Broker, small_config

TIMEOUT = 40.0
ACK_TIMEOUT = 2.0
"""Short, because what is tested is a command that takes longer than this."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    config: Config = small_config()
    with Broker(config=replace(config, queues=replace(config.queues, ack_timeout=ACK_TIMEOUT))) as broker:
        yield broker


@pytest.mark.parametrize("workers", some(("1", "3"), "3"))
def test_a_command_that_takes_longer_than_the_ack_timeout_runs_once(
    start: Start, client: malamute.Client, tmp_path: Path, workers: str
) -> None:
    runs = tmp_path / "runs"
    start("work", "slow", "--workers", workers, "--", f"echo run >> {runs}; sleep {2 * ACK_TIMEOUT}; cat")
    assert [reply.body for reply in client.request("slow", "a", b"done", timeout=TIMEOUT)] == [b"done"]
    assert runs.read_text() == "run\n"
    (service,) = client.query("services")
    assert (service["timeouts"], service["redelivered"], service["messages"]) == (0, 0, 0)


@pytest.mark.parametrize(("size", "fits"), [(65_536, True), (65_537, False)])
def test_a_command_may_write_so_much_and_no_more(
    start: Start, client: malamute.Client, size: int, fits: bool
) -> None:
    start("work", "much", "--output-limit", "64KiB", "--", f"head -c {size} /dev/zero")
    (reply,) = client.request("much", "a", timeout=TIMEOUT)
    assert reply.body == (bytes(size) if fits else b"")
    error = reply.headers.get("malamute.error", "")
    assert error == ("" if fits else "more than 65,536 bytes of output")


def test_a_command_that_writes_without_end_is_ended(start: Start, client: malamute.Client) -> None:
    start("work", "endless", "--output-limit", "1MiB", "--", "yes")
    for _ in range(2):
        (reply,) = client.request("endless", "a", timeout=TIMEOUT)
        assert reply.headers["malamute.error"] == "more than 1,048,576 bytes of output"


def test_a_reply_that_the_broker_would_not_take_says_so(start: Start, client: malamute.Client) -> None:
    limit = small_config().limits.message_bytes
    start("work", "large", "--output-limit", str(2 * limit), "--", f"head -c {limit + 1} /dev/zero")
    (reply,) = client.request("large", "a", timeout=TIMEOUT)
    assert f"{limit}" in str(reply.headers["malamute.error"])
    assert reply.headers["malamute.exit"] == -1


def converse(command: str, body: bytes, output_bytes_max: int = 1 << 20) -> tuple[bool, Conversation]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, shell=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        conversation = Conversation(process, body, output_bytes_max)
        return conversation.run(), conversation


def test_much_goes_in_and_out_at_the_same_time() -> None:
    body = bytes(range(256)) * 4000
    done, conversation = converse("cat", body)
    assert done
    assert conversation.output == body


def test_of_what_went_wrong_the_end_is_kept() -> None:
    done, conversation = converse("head -c 5000000 /dev/zero >&2; printf end >&2", b"")
    assert done
    assert conversation.errors.endswith(b"end")
    assert len(conversation.errors) == 4 * ERROR_CHARACTERS


def test_a_command_need_not_take_its_input() -> None:
    done, conversation = converse("exec 0<&-; echo done", bytes(5_000_000))
    assert done
    assert conversation.output == b"done\n"


def test_a_size_that_is_none_is_refused(run: Run) -> None:
    assert "size" in run("work", "s", "--output-limit", "much", "--", "true", exit_code=2).stderr
