"""How a broker begins and ends: cleanly, and one at a time on a directory."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from forked_commands import forked_malamute
from rig_daemon import Daemon, environment, small
from rig_load import check_numbering, read_back
from rig_waiting import PATIENCE

import malamute
from malamute.client.events import Connected, Event, Lost
from malamute.errors import ConnectTimeout, TooMany
from malamute.server.daemon import OTHER_FILES

Connect = Callable[..., malamute.Client]


def run_broker(*options: str | Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """The command that users type, for a broker that cannot start."""
    return subprocess.run(
        [forked_malamute(), "broker", "run", *map(str, options)],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_after_a_signal_everything_confirmed_is_there_and_sequences_continue_without_a_gap(
    daemon: Daemon, connect: Connect
) -> None:
    """WP30, WP32, WP43."""
    publisher = connect()
    for life, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM)):
        with publisher.publisher("load", batch=10) as out:
            receipts = [out.publish("a", b"%d" % life) for _ in range(100)]
        assert [receipt.sequence for receipt in receipts] == list(range(100 * life + 1, 100 * life + 101))
        publisher.send("bob", "hello", b"%d" % life)
        daemon.stop(number)
        daemon.start()
    stored, gaps = read_back(daemon.url)
    assert [message.sequence for message in stored] == list(range(1, 301))
    assert gaps == []
    with connect("bob").mailbox() as mail:
        assert [mail.receive(PATIENCE).body for _ in range(3)] == [b"0", b"1", b"2"]
    assert '"stopped"' in daemon.log


def test_a_broker_that_has_crashed_reads_all_that_is_stored_at_its_next_start(
    daemon: Daemon, connect: Connect
) -> None:
    """As after a page that the disk could not read; here the signal comes from the test."""
    connect().publish("load", "a", b"1", assurance="stored")
    daemon.send_signal(signal.SIGBUS)
    assert daemon.wait() == -signal.SIGBUS
    daemon.start()
    crashed = [line for line in map(json.loads, daemon.log.splitlines()) if "has crashed" in line["event"]]
    assert ["Bus error" in line["report"] for line in crashed] == [True]
    assert [message.body for message in read_back(daemon.url)[0]] == [b"1"]
    daemon.restart()
    assert daemon.log.count("has crashed") == 1


RELOADED_AT_THE_START = """
import os, signal
from malamute.config import Config, ListenConfig, StorageConfig
from malamute.server import daemon

open_store = daemon.open_store

def interrupted(config, **options):
    signal.raise_signal(signal.SIGHUP)
    return open_store(config, **options)

daemon.open_store = interrupted
listen = ListenConfig(endpoints=("tcp://127.0.0.1:*",))
config = Config(listen=listen, storage=StorageConfig(kind="memory"))

def read():
    os.kill(os.getpid(), signal.SIGTERM)
    return config

daemon.run(config, read=read)
"""


def test_a_reload_that_is_asked_for_while_the_broker_starts_follows_the_start() -> None:
    """SIGHUP would end a process that does not expect it."""
    ended = subprocess.run(
        [sys.executable, "-c", RELOADED_AT_THE_START],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_a_signal_under_load_confirms_what_was_accepted_before_the_end(daemon: Daemon) -> None:
    """WP32: what is under way when the signal comes is confirmed, or sent again to the next life."""
    with malamute.connect(daemon.url, timeout=PATIENCE) as client:
        client.on_event = lambda event: None
        with client.publisher("load", batch=10, timeout=PATIENCE) as out:
            for life in range(3):
                for number in range(2_000):
                    out.publish("a", b"%d" % (2_000 * life + number))
                daemon.restart()
    stored, gaps = read_back(daemon.url)
    assert [int(message.body) for message in stored] == list(range(6_000))
    check_numbering([message.sequence for message in stored], gaps)
    assert gaps == []


def test_where_a_broker_was_stopped_nobody_connects_and_its_clients_come_back_by_themselves(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29."""
    events: list[Event] = []
    client = connect()
    client.on_event = events.append
    with client.subscribe("s") as messages:
        daemon.stop()
        with pytest.raises(ConnectTimeout):
            malamute.connect(daemon.url, timeout=0.2)
        daemon.start()
        assert client.publish("s", "a", b"", assurance="stored") == messages.receive(PATIENCE).sequence
    assert [type(event) for event in events if isinstance(event, Connected | Lost)] == [Lost, Connected]


def test_a_second_broker_on_the_same_directory_is_refused_and_the_first_is_not_disturbed(
    daemon: Daemon, connect: Connect, tmp_path: Path
) -> None:
    """One directory, one broker."""
    client = connect()
    data = daemon.config.storage.directory
    second = run_broker("--data", data, "--listen", "tcp://127.0.0.1:*", directory=tmp_path)
    assert second.returncode == 1
    assert second.stdout == ""
    assert f"error 801: {data} is in use by process {daemon.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert client.publish("s", "a", b"", assurance="stored") == 1
    assert client.query("status")["pid"] == daemon.pid


def test_a_port_in_use_is_reported_by_its_name_and_the_directory_stays_free(
    daemon: Daemon, new_daemon: Callable[..., Daemon], connect: Connect, tmp_path: Path
) -> None:
    """WP28: the one that cannot start says why, and leaves nothing locked."""
    other = new_daemon()
    listen = other.config.listen
    other.configure(replace(other.config, listen=replace(listen, endpoints=(daemon.url,))))
    refused = run_broker("--config", other.file, directory=tmp_path)
    assert refused.returncode == 1
    assert f"error 700: cannot listen on {daemon.url}: address already in use" in refused.stderr
    assert "Traceback" not in refused.stderr
    other.configure(replace(other.config, listen=listen))
    other.start()
    assert connect().query("status")["pid"] == daemon.pid


def test_the_command_starts_a_broker_and_a_signal_ends_it_with_code_0(
    new_daemon: Callable[..., Daemon],
) -> None:
    """What a user does: start it, use it, press Control-C."""
    config = new_daemon().file
    command = [sys.executable, "-m", "malamute", "broker", "run", "--json", "--config", str(config)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            with malamute.connect(started["endpoints"][0], timeout=PATIENCE) as client:
                assert client.publish("s", "a", b"", assurance="stored") == 1
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, log
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert events == ["started", "stopping", "stopped"]


def test_a_broker_whose_greeting_nobody_reads_serves_all_the_same(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    read, write = os.pipe()
    os.close(read)
    command = [forked_malamute(), "broker", "run", "--config", str(daemon.file)]
    with subprocess.Popen(command, env=environment(), stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        try:
            with malamute.connect(daemon.url, timeout=PATIENCE) as client:
                assert client.publish("s", "a", b"", assurance="stored") == 1
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, log


def test_where_few_files_may_be_open_the_session_too_many_is_refused_and_the_log_says_why(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    daemon = new_daemon()
    daemon.start(files=OTHER_FILES + 3)
    clients = [connect_to(daemon.url) for _ in range(3)]
    with pytest.raises(TooMany, match="expected at most 3"):
        malamute.connect(daemon.url, timeout=PATIENCE)
    clients.pop().close()
    assert connect_to(daemon.url).query("status")["clients"] == 3
    (warning,) = [line for line in map(json.loads, daemon.log.splitlines()) if line["level"] == "warning"]
    assert (warning["connections"], warning["configured"]) == (3, 1000)
    assert "LimitNOFILE" in warning["hint"]


def test_where_no_session_could_have_a_file_it_does_not_start_and_says_why() -> None:
    limit = f"ulimit -n {OTHER_FILES}; exec {shlex.quote(sys.executable)} -m malamute broker run --memory"
    refused = subprocess.run(["sh", "-c", limit], capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 1
    assert f"may open {OTHER_FILES} files" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_all_listeners_reach_the_same_broker(
    new_daemon: Callable[..., Daemon], connect_to: Connect, tmp_path: Path
) -> None:
    """WP15: TCP, a Unix socket by its path, and a Linux abstract one, all at once."""
    config = small()
    daemon = new_daemon()
    path = f"ipc://{tmp_path}/s"
    abstract = f"ipc://@/malamute-test-{daemon.url.rpartition(':')[2]}"
    endpoints = (daemon.url, path, abstract)
    daemon.configure(replace(config, listen=replace(config.listen, endpoints=endpoints)))
    daemon.start()
    clients = [connect_to(url, f"at-{place}") for place, url in enumerate(endpoints)]
    assert {client.query("status")["pid"] for client in clients} == {daemon.pid}
    assert clients[0].query("status")["endpoints"] == list(endpoints)

    subscriptions = [client.subscribe("s") for client in clients]
    for client in clients:
        client.publish("s", "a", client.address.encode(), assurance="stored")
    for subscription in subscriptions:
        had = [subscription.receive(PATIENCE) for _ in clients]
        assert [(m.sequence, m.sender) for m in had] == [(1, "at-0"), (2, "at-1"), (3, "at-2")]
    clients[0].send("at-2", "hello", b"over")
    assert clients[2].receive(PATIENCE).sender == "at-0"

    daemon.restart()
    for client, subscription in zip(clients, subscriptions, strict=True):
        client.publish("s", "a", b"again", assurance="stored")
        assert subscription.receive(PATIENCE).body == b"again"
