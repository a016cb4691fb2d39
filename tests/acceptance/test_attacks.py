"""What a client tries that wants what is another's, at defaults against a real broker."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner
from rig_daemon import Daemon, small
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.cli.root import cli
from malamute.config import LogConfig
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import VERSION, Hello, Offer, Subscribe, Welcome

TOP = ("top", "--count", "1")
LISTS = ("clients", "status", "streams", "mailboxes", "services", "feeds", "cursors", "storage")


def test_a_backup_follows_no_link_and_touches_nothing_that_is_there(
    daemon: Daemon, connect: Callable[..., malamute.Client]
) -> None:
    client = connect()
    backups = daemon.file.parent / "data" / "backups"
    outside = daemon.file.parent / "outside"
    for directory in (backups, outside, backups / "other"):
        directory.mkdir()
    kept = [backups / "file", backups / "other" / "data.mdb"]
    for file in kept:
        file.write_text("precious")
    (backups / "link").symlink_to(outside)
    (backups / "dangling").symlink_to(daemon.file.parent / "nowhere")
    for name in (
        "link",
        "link/x",
        "dangling",
        "file",
        "file/x",
        "other",
        "..",
        "../x",
        "/etc/x",
        ".",
        "a/../..",
    ):
        with pytest.raises((malamute.errors.AccessRefused, malamute.errors.StoreError)):
            client.change("journal.backup", directory=name)
    assert [file.read_text() for file in kept] == ["precious"] * 2
    assert not [*outside.iterdir()]
    assert not (daemon.file.parent / "nowhere").exists()
    assert Path(client.change("journal.backup", directory="mine")["directory"]) == backups / "mine"


def test_mail_that_knows_the_correlation_is_no_reply(
    daemon: Daemon, connect_to: Callable[..., malamute.Client]
) -> None:
    asker, thief, worker = (connect_to(daemon.url, name) for name in ("asker", "thief", "worker"))
    replies = asker.request("printer", "a", b"question", timeout=PATIENCE)
    eventually(lambda: thief.query("services"), "the request is there")
    (row,) = thief.query("messages", kind="service", name="printer")
    thief.send("asker", "a", b"forged", correlation=row["properties"]["correlation"], assurance="stored")
    with worker.work("printer") as requests:
        next(iter(requests)).reply(b"answer")
    assert [bytes(reply.body) for reply in replies] == [b"answer"]


def test_the_routing_id_is_nowhere(
    new_daemon: Callable[..., Daemon], connect_to: Callable[..., malamute.Client]
) -> None:
    """Nor in the log, if it tells all that it can, nor in what the command line prints."""
    daemon = new_daemon(replace(small(), log=LogConfig(level="debug"))).start()
    client, context = connect_to(daemon.url), zmq.Context()
    identity = b"\x01" + secrets.token_bytes(15)
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.ROUTING_ID, identity)
    raw.connect(daemon.url)
    reported: list[object] = []
    for message in (Hello([VERSION], "me"), Offer(1, "w", [["all", ""]]), Subscribe(2, "s", [["all", ""]])):
        raw.send_multipart(encode(message))
        assert raw.poll(PATIENCE * 1000)
        reported.append(decode(raw.recv_multipart()))
    assert isinstance(reported[0], Welcome)
    raw.send_multipart([b"\xff garbage"])
    assert raw.poll(PATIENCE * 1000)
    reported += [raw.recv_multipart(), *(client.query(topic) for topic in LISTS)]
    reported += [client.query("stream", name="s"), client.query("service", name="w")]
    with client.subscribe("$sys", start="first") as events:
        reported += [(event.subject, event.headers) for event in islice(events, 2)]
    shown = [
        CliRunner().invoke(cli, [*command, *form, "--url", daemon.url])
        for command in (("client", "list"), ("client", "show", "me"), ("service", "show", "w"), TOP)
        for form in ((), ("--json",))
    ]
    assert [result.exit_code for result in shown] == [0] * len(shown), shown
    raw.close(0)
    context.term()
    eventually(lambda: not client.query("client", id="me")["connected"], "it is gone")
    text = repr(reported) + daemon.log + "".join(result.output for result in shown)
    for part in (identity, identity[:8], identity[8:], identity[4:12]):
        assert part.hex() not in text
        assert repr(part)[2:-1] not in text
