"""Commands as processes: signals, pipes, and a broker from its start to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import ROOT, TIMEOUT, Run, Start, code_of_one_asked_again

import malamute
from malamute.cli.broker import greeting
from malamute.errors import MalamuteError
from malamute.server.process import BrokerProcess
from malamute.testing import Broker

Until = Callable[[Callable[[], object]], None]
SMALL = ("--set", "storage.size=1GiB", "--set", "storage.preallocate=false")


def _subscribed(client: malamute.Client) -> Callable[[], object]:
    return lambda: any(row["subscriptions"] for row in client.query("clients"))


def _offering(client: malamute.Client, offers: int = 1) -> Callable[[], object]:
    return lambda: sum(row["offers"] for row in client.query("clients")) == offers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sub(start_anew: Start, client: malamute.Client, until: Until, number: int) -> None:
    sub = start_anew("sub", "weather", "--body")
    until(_subscribed(client))
    client.publish("weather", "a", b"b", assurance="stored")
    assert sub.stdout is not None
    assert sub.stdout.readline() == "b\n"
    sub.send_signal(number)
    assert sub.communicate(timeout=TIMEOUT) == ("", "")
    assert sub.returncode == 0


def test_a_closed_pipe_ends_sub(start_anew: Start, client: malamute.Client, until: Until) -> None:
    sub = start_anew("sub", "weather", "--body")
    until(_subscribed(client))
    assert sub.stdout is not None
    assert sub.stderr is not None
    sub.stdout.close()
    client.publish("weather", "a", b"b", assurance="stored")
    assert sub.wait(TIMEOUT) == 0
    assert sub.stderr.read() == ""


def test_a_closed_pipe_ends_a_list(start_anew: Start, client: malamute.Client) -> None:
    client.publish("weather", "a", b"b", assurance="stored")
    reading, writing = os.pipe()
    os.close(reading)
    code = "from malamute.cli import main; main()"
    listing = subprocess.run(
        [sys.executable, "-c", code, "stream", "list", "--url", client.url],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (listing.returncode, listing.stderr) == (0, b"")


def test_recv_acknowledges_what_it_has_printed(
    start_anew: Start, client: malamute.Client, until: Until
) -> None:
    client.send("bob", "a", b"one")
    recv = start_anew("recv", "bob", "--body")
    assert recv.communicate(timeout=TIMEOUT) == ("one\n", "")
    until(lambda: [row["messages"] for row in client.query("mailboxes") if row["name"] == "bob"] == [0])


def test_a_signal_ends_recv(start_anew: Start, client: malamute.Client, until: Until) -> None:
    recv = start_anew("recv", "bob", "--count", "0")
    until(lambda: any(row["name"] == "bob" and row["consumers"] for row in client.query("mailboxes")))
    recv.send_signal(signal.SIGTERM)
    assert recv.communicate(timeout=TIMEOUT) == ("", "")
    assert recv.returncode == 0


def test_an_interrupted_command_leaves_its_request_to_another(
    start_anew: Start, client: malamute.Client, until: Until, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    first = start_anew("work", "slow", "--", f"touch {begun}; exec sleep 600")
    until(_offering(client))
    replies = client.request("slow", "s", b"body", timeout=TIMEOUT)
    until(begun.exists)
    first.send_signal(signal.SIGINT)
    assert first.wait(TIMEOUT) == 0
    start_anew("work", "slow", "--", "cat")
    assert [reply.body for reply in replies] == [b"body"]


def test_a_lost_connection_reconnects_and_is_reported(
    start_anew: Start, broker: Broker, client: malamute.Client, until: Until
) -> None:
    sub = start_anew("sub", "weather", "--body", "--count", "1")
    until(_subscribed(client))
    broker.restart()
    until(_subscribed(client))
    client.publish("weather", "a", b"b", assurance="stored")
    output, errors = sub.communicate(timeout=TIMEOUT)
    assert output == "b\n"
    # A broker in memory that has started again is another store, which the gap says.
    assert [line.partition(":")[0] for line in errors.splitlines()] == ["lost", "connected", "gap"]


def test_a_broker_from_its_start_to_its_end(run: Run, start_anew: Start, tmp_path: Path) -> None:
    broker = start_anew(
        "broker", "run", "--json", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:*", *SMALL
    )
    assert broker.stdout is not None
    shown = json.loads(broker.stdout.readline())
    assert shown["directory"] == str(tmp_path)
    assert shown["pid"] == broker.pid
    (url,) = shown["endpoints"]
    status = json.loads(run("broker", "status", "--json", "--url", url).stdout)
    assert (status["pid"], status["storage"]) == (broker.pid, "lmdb")
    locked = start_anew("broker", "run", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:*", *SMALL)
    assert "error 801" in locked.communicate(timeout=TIMEOUT)[1]
    assert locked.returncode == 1
    broker.send_signal(signal.SIGTERM)
    output, errors = broker.communicate(timeout=TIMEOUT)
    assert (output, broker.returncode) == ("", 0)
    assert json.loads(errors.splitlines()[-1])["event"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_asks_a_broker_to_end_again_and_again_has_it_end_in_order(start_anew: Start, number: int) -> None:
    broker = start_anew("broker", "run", "--memory", "--listen", "tcp://127.0.0.1:*")
    assert broker.stdout is not None
    broker.stdout.readline()
    broker.send_signal(signal.SIGTERM)
    assert code_of_one_asked_again(broker, number) == 0


def test_a_broker_shows_people_what_to_try(start_anew: Start) -> None:
    broker = start_anew("broker", "run", "--memory", "--listen", "tcp://127.0.0.1:*")
    assert broker.stdout is not None
    lines = [broker.stdout.readline() for _ in range(12)]
    broker.send_signal(signal.SIGINT)
    assert broker.wait(TIMEOUT) == 0
    text = "".join(lines)
    assert "in memory" in text
    assert text.count("--url tcp://127.0.0.1:") == 3


def test_the_default_endpoint_need_not_be_named() -> None:
    text = greeting(["tcp://127.0.0.1:9999", "ipc://@/malamute"], "/data", "malamute")
    assert "  malamute pub weather temp.oslo -- -3.5\n" in text
    assert "--url" not in text


def test_a_broker_that_cannot_start_says_why(run: Run) -> None:
    wrong = run("broker", "run", "--memory", "--listen", "ipc:///nonexistent/socket", exit_code=1)
    assert wrong.stderr.splitlines()[-2].startswith("error 700: cannot listen on")


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(MalamuteError, match=r"did not start: --set storage.size: .* \(error 700\)"),
        BrokerProcess(tmp_path, "--set", "storage.size=much"),
    ):
        pass
