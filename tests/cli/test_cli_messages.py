"""The commands that carry messages, against a broker."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgpack
import pytest
from cli_commands import Run, Start
from depth import some
from lab.raw_peer import RawPeer

import malamute
from malamute import matching
from malamute.cli.options import FAMILIES, JSON_FAMILIES, ConnectionOptions, Reporter, criteria_of
from malamute.client.events import Gap, Refusal, Switched
from malamute.errors import Closed, TryLater
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import Publish, Stored
from malamute.testing import Broker


def _bodies(client: malamute.Client, stream: str, count: int) -> list[bytes]:
    with client.subscribe(stream, start="first") as messages:
        return [messages.receive(timeout=10).body for _ in range(count)]


# Streams


def test_a_message_is_published_and_read(run: Run, broker: Broker) -> None:
    printed = run("pub", "weather", "temp.oslo", "-H", "unit=C", "-H", "n=5", "--", "-3.5").stdout
    assert printed == "1 message stored in weather, sequence 1\n"
    read = run("sub", "weather", "temp.*", "--start", "first", "-n", "1").stdout
    assert read == '1\ttemp.oslo\t-3.5\t{"unit": "C", "n": 5}\n'


def test_publishing_shows_json(run: Run, broker: Broker) -> None:
    printed = json.loads(run("pub", "weather", "a", "b", "--json").stdout)
    assert printed == {"stream": "weather", "messages": 1, "sequence": 1, "confirmed": True}
    printed = json.loads(run("pub", "weather", "a", "b", "--no-confirm", "--json").stdout)
    assert printed == {"stream": "weather", "messages": 1, "sequence": None, "confirmed": False}


def test_published_messages_may_expire(run: Run, client: malamute.Client) -> None:
    run("pub", "quotes", "eur", "1.05", "--ttl", "1ms")
    run("pub", "quotes", "eur", "--lines", "--ttl", "1ms", stdin="1.06\n1.07")
    run("pub", "quotes", "eur", "1.08", "--ttl", "1h")
    time.sleep(0.002)
    with client.subscribe("quotes", start=1) as quotes:
        message = quotes.receive(timeout=10)
        assert (message.body, message.expires) == (b"1.08", message.time + timedelta(hours=1))
        assert [*quotes.recent_gaps] == [Gap("quotes", 1, 3, "expired")]
    assert (
        "expected more than 0 seconds" in run("pub", "quotes", "eur", "1", "--ttl", "0s", exit_code=1).output
    )


def test_a_body_from_standard_input(run: Run, client: malamute.Client) -> None:
    run("pub", "weather", "a", "-", stdin=b"\xff\n\0")
    assert _bodies(client, "weather", 1) == [b"\xff\n\0"]


def test_a_message_many_times(run: Run, client: malamute.Client) -> None:
    assert run("pub", "weather", "a", "b", "--count", "2500").stdout == "2,500 messages stored in weather\n"
    assert client.query("stream", name="weather")["last"] == 2500


def test_each_line_is_a_message(run: Run, client: malamute.Client) -> None:
    assert run("pub", "logs", "web", "--lines", stdin="one\n\nthree").stdout.startswith("3 messages")
    assert _bodies(client, "logs", 3) == [b"one", b"", b"three"]


def test_what_sub_prints_as_json_can_be_published(run: Run, client: malamute.Client, tmp_path: Path) -> None:
    client.publish("one", "a.b", b"\xff", {"n": 1}, assurance="stored")
    client.publish("one", "a.c", "ä".encode(), {"p": None}, assurance="stored")
    file = tmp_path / "messages.json"
    file.write_text(run("sub", "one", "--start", "first", "-n", "2", "--json").stdout)
    assert run("pub", "two", "--file", str(file)).stdout == "2 messages stored in two\n"
    with client.subscribe("two", start="first") as messages:
        copies = [messages.receive(timeout=10) for _ in range(2)]
    assert [(m.subject, m.headers, m.body) for m in copies] == [
        ("a.b", {"n": 1}, b"\xff"),
        ("a.c", {"p": None}, "ä".encode()),
    ]


def test_an_odd_record_ends_nobodys_reading(run: Run, broker: Broker, client: malamute.Client) -> None:
    """Any client may publish bytes that are no record of ours; who reads the stream goes on."""
    records = [pack_record(None, b"1"), msgpack.packb([{1: 2}, b"x"]), b"\xc1", pack_record(None, b"4")]
    with RawPeer(broker.url, "") as peer:
        peer.send(Publish("odd", 1, ["s"] * 4, records))
        peer.next(Stored)
    for arguments in ([], ["--json"], ["--body"], ["--raw"], ["--format", "{sequence} {headers} {body}"]):
        found = run("sub", "odd", "--start", "first", "-n", "4", *arguments)
        assert "x" in found.stdout
        assert "4" in found.stdout
    viewed = run("stream", "view", "odd", "--start", "first")
    assert "unreadable" in viewed.stdout
    copied = run(
        "pub", "two", "--file", "-", stdin=run("sub", "odd", "--start", "first", "-n", "4", "--json").stdout
    )
    assert copied.stdout == "3 messages stored in two\n"
    assert "left out" in copied.stderr
    assert _bodies(client, "two", 3) == [b"1", b"x", b"4"]


def test_a_copy_is_the_same_stream(run: Run, client: malamute.Client) -> None:
    client.publish(
        "one", "a", [b"f1", b"\xff", b""], {"n": math.nan, "i": -math.inf}, ttl=3600, assurance="stored"
    )
    client.publish("one", "b", [], {"z": -0.0}, ttl=7200.5, assurance="stored")
    client.publish("one", "c", b"x", assurance="stored")
    text = run("sub", "one", "--start", "first", "-n", "3", "--json").stdout
    assert run("pub", "two", "--ttl", "1h", "--file", "-", stdin=text).stdout == "3 messages stored in two\n"
    both = []
    for stream in ("one", "two"):
        with client.subscribe(stream, start="first") as messages:
            found = [messages.receive(timeout=10) for _ in range(3)]
        both.append([(m.subject, repr(m.headers), m.frames, m.ttl) for m in found])
    assert both[0][:2] == both[1][:2]
    # One that has no time to live of its own gets that of the command.
    assert [row[3] for row in both[1]] == [3600.0, 7200.5, 3600.0]


def test_a_file_may_leave_subjects_and_headers_to_the_options(run: Run, client: malamute.Client) -> None:
    run("pub", "one", "a", "-H", "unit=C", "--file", "-", stdin='{"body": "x"}\n\n{"subject": "b"}\n')
    with client.subscribe("one", start="first") as messages:
        found = [messages.receive(timeout=10) for _ in range(2)]
    assert [(m.subject, m.headers, m.body) for m in found] == [
        ("a", {"unit": "C"}, b"x"),
        ("b", {"unit": "C"}, b""),
    ]


def test_a_wrong_line_is_reported_with_its_number(run: Run, broker: Broker) -> None:
    wrong = run("pub", "one", "a", "--file", "-", stdin='{"body": "x"}\n\nnonsense\n', exit_code=1)
    assert "line 3: invalid JSON" in wrong.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("s",),
        ("s", "a", "b", "--lines"),
        ("s", "a", "--lines", "--count", "2"),
        ("s", "a", "-H", "=5"),
        ("s", "a", "b", "--timeout", "0"),
    ],
)
def test_wrong_usage_of_pub(run: Run, arguments: tuple[str, ...]) -> None:
    assert "Usage: malamute pub" in run("pub", *arguments, exit_code=2).stderr


def test_a_uri_reaches_its_broker(run: Run, broker: Broker) -> None:
    uri = f"malamute://{broker.url.removeprefix('tcp://')}/stream/weather"
    run("pub", uri, "a", "b", MALAMUTE_URL="tcp://127.0.0.1:1")
    assert run("sub", uri, "--start", "first", "-n", "1", "--body").stdout == "b\n"


def test_sub_ends_when_nothing_comes(run: Run, client: malamute.Client) -> None:
    client.publish("weather", "a", b"b", assurance="stored")
    assert run("sub", "weather", "--start", "first", "--wait", "0.01").stdout in ("1\ta\tb\n", "")
    few = run("sub", "weather", "--start", "seq:1", "-n", "2", "--wait", "3", "--raw", exit_code=3)
    assert few.stdout == "b"


def test_a_family_and_a_template(run: Run, client: malamute.Client) -> None:
    for subject in ("temp.oslo", "temp.rome", "wind.oslo"):
        client.publish("weather", subject, b"x", assurance="stored")
    options = ("--family", "prefix", "--start", "first", "-n", "2", "--format", "{sequence:03d}={subject}")
    assert run("sub", "weather", "temp", *options).stdout == "001=temp.oslo\n002=temp.rome\n"


PLACES = {"oslo": (59.91, 10.75), "rome": (41.9, 12.5)}

PATTERNS = {
    "all": ("", {"temp.oslo", "temp.oslo.mast", "wind.rome"}),
    "exact": ("temp.oslo", {"temp.oslo"}),
    "prefix": ("temp.", {"temp.oslo", "temp.oslo.mast"}),
    "topic": ("temp.*", {"temp.oslo"}),
    "topic-amqp": ("temp.#", {"temp.oslo", "temp.oslo.mast"}),
    "regex": ("[a-z]+\\.rome", {"wind.rome"}),
    "fields": ('{"any": [["place", "rome"], ["mast"]]}', {"temp.oslo.mast", "wind.rome"}),
    "geo": ('{"circle": [59.9, 10.7, 50]}', {"temp.oslo", "temp.oslo.mast"}),
    "sender": ("test", {"temp.oslo", "temp.oslo.mast", "wind.rome"}),
}
"""A pattern of each family, and the subjects of the messages that it takes."""


def _publish_from_places(client: malamute.Client) -> None:
    for subject in ("temp.oslo", "temp.oslo.mast", "wind.rome", "end"):
        lat, lon = PLACES.get(place := subject.partition(".")[2].partition(".")[0], (0.0, 0.0))
        headers = {"place": place, "lat": lat, "lon": lon} | ({"mast": None} if "mast" in subject else {})
        client.publish("weather", subject, b"", headers, assurance="stored")


def test_every_family_is_listed(run: Run) -> None:
    assert {*FAMILIES} == {*matching.FAMILIES} == {*PATTERNS}
    needing = {name for name, family in matching.FAMILIES.items() if family.needs_headers}
    assert {*JSON_FAMILIES} == needing - {"sender"}
    assert ", ".join(FAMILIES) in " ".join(run("sub", "--help").stdout.split())


@pytest.mark.parametrize("family", PATTERNS)
def test_every_family_reaches_through_a_broker_out_of_the_journal(
    run: Run, client: malamute.Client, family: str
) -> None:
    _publish_from_places(client)
    pattern, wanted = PATTERNS[family]
    wanted = wanted | {"end"} if family in ("all", "sender") else wanted
    read = ("stream", "view", "weather", pattern, "--family", family, "--json")
    assert {json.loads(line)["subject"] for line in run(*read).stdout.splitlines()} == wanted


@pytest.mark.parametrize("family", PATTERNS)
def test_every_family_reaches_through_a_broker_live(client: malamute.Client, family: str) -> None:
    pattern, wanted = PATTERNS[family]
    criteria = [*criteria_of(family, (pattern,)), ("exact", "end")]
    with client.subscribe("weather", criteria=criteria) as messages:
        _publish_from_places(client)
        subjects = iter(lambda: messages.receive(timeout=60).subject, "end")
        assert {*subjects} == wanted


def test_a_pattern_in_brackets_that_is_no_json_is_wrong_usage(run: Run) -> None:
    for pattern in ("{circle", "[" * 100_000):
        printed = run("sub", "s", pattern, "--family", "geo", exit_code=2)
        assert "invalid pattern of family geo: expected JSON" in printed.stderr


WAITS = [
    (("recv", "bob"), 3),
    (("recv", "bob", "--count", "0"), 0),
    (("sub", "s", "-n", "1"), 3),
    (("sub", "s"), 0),
    (("events", "nothing.#"), 0),
    (("request", "nobody", "a"), 3),
    (("send", "carl", "a", "--outcome", "--address", "alice"), 3),
]
"""Commands that wait, each with its exit code when nothing comes."""


@pytest.mark.parametrize(("command", "exit_code"), some(WAITS, WAITS[1], WAITS[2], *WAITS[5:]))
def test_a_time_out_ends_every_wait_and_wait_comes_before_it(
    run: Run, broker: Broker, command: tuple[str, ...], exit_code: int
) -> None:
    run(*command, "--timeout", "2", exit_code=exit_code)
    run(*command, "--timeout", "600", "--wait", "0.01", exit_code=exit_code)


def test_one_way_of_printing_at_a_time(run: Run) -> None:
    assert "expected one of them" in run("sub", "s", "--json", "--body", exit_code=2).stderr


# Mailboxes


def test_mail_waits_for_its_recipient(run: Run, broker: Broker) -> None:
    assert (
        run("send", "bob", "hello", "see you", "-H", "n=1").stdout == "1 message stored in the mailbox bob\n"
    )
    assert run("recv", "bob", "--no-ack").stdout == '1\thello\tsee you\t{"n": 1}\n'
    again = json.loads(run("recv", "--address", "bob", "--json").stdout)
    assert (again["body"], again["attempts"]) == ("see you", 2)
    assert run("recv", "bob", "--wait", "0.1", exit_code=3).stdout == ""


def test_all_mail_that_is_there(run: Run, broker: Broker) -> None:
    for number in range(3):
        printed = run("send", "bob", "n", "-", "--no-confirm", "--json", stdin=str(number)).stdout
        assert json.loads(printed) == {"mailbox": "bob", "messages": 1, "confirmed": False}
    assert run("recv", "bob", "--count", "0", "--wait", "3", "--body").stdout == "0\n1\n2\n"


def test_recv_consumes_beside_others_and_from_one_sender(run: Run, broker: Broker) -> None:
    """Its owner stays connected: nobody takes his address."""
    with malamute.connect(broker.url, address="team") as owner:
        for name in ("alice", "ann"):
            run("send", "team", "a", name, "--address", name)
        assert run("recv", "team", "--from", "ann", "--body").stdout == "ann\n"
        assert run("recv", "team", "--shared", "--body", "--address", "bob").stdout == "alice\n"
        assert (
            run("recv", "team", "--from", "ann", "--from", "alice", "--wait", "0.1", exit_code=3).stdout == ""
        )
        assert owner.query("clients", limit=10)[0]["address"] == "team"


def test_recv_gives_mail_back_to_its_sender(run: Run, broker: Broker) -> None:
    run("send", "bob", "hello", "see you", "--address", "alice")
    assert run("recv", "bob", "--bounce", "moved", "--body").stdout == "see you\n"
    with malamute.connect(broker.url, address="alice") as alice:
        back = alice.receive(timeout=30)
        assert (back.body, back.bounced, back.properties["reason"]) == (b"see you", "bob", "moved")
    run("send", "bob", "hello", "nobody's")
    assert "its sender has no address" in run("recv", "bob", "--bounce", "", exit_code=1).stderr
    assert run("recv", "bob", "--body").stdout == "nobody's\n"


def test_recv_needs_a_mailbox(run: Run) -> None:
    assert "no mailbox: give MAILBOX" in run("recv", exit_code=2).stderr


# Services


def test_a_command_answers_requests(run: Run, start: Start, client: malamute.Client) -> None:
    start("work", "shout", "text.*", "--", "tr", "a-z", "A-Z")
    assert run("request", "shout", "text.en", "good morning").stdout == "GOOD MORNING\n"
    assert json.loads(run("request", "shout", "text.en", "-", "--json", stdin="hi").stdout)["body"] == "HI"


def test_a_command_knows_its_request(run: Run, start: Start, client: malamute.Client) -> None:
    command = "echo $MALAMUTE_SERVICE $MALAMUTE_SUBJECT $MALAMUTE_SENDER $MALAMUTE_HEADER_UNIT"
    start("work", "echo", "--", command)
    asked = run("request", "echo", "a.b", "-H", "unit=C", "--address", "alice")
    assert asked.stdout == "echo a.b alice C\n"


def test_a_command_that_fails_says_how(run: Run, start: Start, client: malamute.Client) -> None:
    start("work", "fail", "--", "cat; echo broken >&2; exit 5")
    failed = run("request", "fail", "a", "body", exit_code=4)
    # The worker may come after the request.
    said = failed.stderr.removeprefix("nobody works for fail now: the request waits\n")
    assert (failed.stdout, said) == ("body\n", "the worker failed: broken\n")
    shown = json.loads(run("request", "fail", "a", "--json", exit_code=4).stdout)
    assert shown["headers"] == {"malamute.exit": 5, "malamute.error": "broken"}


def test_a_command_that_cannot_be_run_says_so(run: Run, start: Start, client: malamute.Client) -> None:
    start("work", "none", "--", "/nonexistent/command", "argument")
    assert "FileNotFoundError" in run("request", "none", "a", exit_code=4).stderr


def test_several_commands_at_the_same_time(start: Start, client: malamute.Client, tmp_path: Path) -> None:
    # Each waits for the other: that ends only if both run.
    code = (
        "import os, sys; mine, other = sys.stdin.read().split(); "
        "open(mine, 'w').close()\nwhile not os.path.exists(other): pass"
    )
    start("work", "pair", "--workers", "2", "--", sys.executable, "-c", code)
    names = [str(tmp_path / name) for name in ("a", "b")]
    bodies = [" ".join(order).encode() for order in (names, names[::-1])]
    asked = [client.request("pair", "s", body, timeout=20) for body in bodies]
    assert [[reply.headers for reply in replies] for replies in asked] == [[{}], [{}]]


def test_a_request_without_a_worker_times_out(run: Run, broker: Broker) -> None:
    late = run("request", "nobody", "a", "--wait", "0.1", exit_code=3)
    assert late.stderr.splitlines()[1].startswith("error 602: no final reply within 0.1 s")


def test_work_needs_a_command(run: Run) -> None:
    assert "no command: give it after --" in run("work", "s", exit_code=2).stderr


# Lists


def test_what_a_broker_has(run: Run, client: malamute.Client) -> None:
    client.publish("weather", "a", b"b", assurance="stored")
    client.send("bob", "a", b"b")
    client.request("printer", "a", b"b", assurance="stored")
    client.flush()
    streams = [row["name"] for row in json.loads(run("stream", "list", "--json").stdout)]
    assert streams == ["$audit", "$sys", "weather"]
    assert "bob" in [row["name"] for row in json.loads(run("mailbox", "list", "--json").stdout)]
    assert json.loads(run("service", "list", "--json").stdout)[0]["name"] == "printer"
    assert "test" in [row["address"] for row in json.loads(run("client", "list", "--json").stdout)]


def test_tables_have_a_head(run: Run, client: malamute.Client) -> None:
    client.publish("weather", "a", b"b", assurance="stored")
    head, *_, row = run("stream", "list").stdout.splitlines()
    assert head.split()[:3] == ["name", "first", "last"]
    assert row.split()[:3] == ["weather", "1", "1"]
    assert "test" in run("client", "list").stdout


def test_nothing_is_reported_as_such(run: Run, broker: Broker) -> None:
    nothing = run("service", "list")
    assert (nothing.stdout, nothing.stderr) == ("", "no services\n")
    assert run("service", "list", "--json").stdout == "[]\n"


def test_the_status(run: Run, broker: Broker) -> None:
    assert json.loads(run("broker", "status", "--json").stdout)["endpoints"] == [broker.url]
    assert broker.url in run("broker", "status").stdout


# Errors


def test_an_error_of_the_broker(run: Run, broker: Broker) -> None:
    wrong = run("sub", "weather", "--start", "nonsense", exit_code=1)
    assert wrong.stderr.startswith("error 416: ")
    assert "\nhint: " in wrong.stderr
    error = json.loads(run("sub", "weather", "--start", "nonsense", "--json", exit_code=1).stderr)["error"]
    assert error["code"] == 416


def test_what_was_refused_unasked_is_an_error_too(run: Run, broker: Broker) -> None:
    body = b"x" * (5 * 1024 * 1024)
    assert "error 413" in run("pub", "weather", "a", "-", "--no-confirm", stdin=body, exit_code=1).stderr


@pytest.mark.parametrize(
    "command", [("pub", "s", "a"), ("sub", "s"), ("recv", "bob"), ("work", "s", "--", "true")]
)
def test_no_broker(run: Run, command: tuple[str, ...]) -> None:
    command = (command[0], "--url", "tcp://127.0.0.1:1", "--timeout", "0.05", *command[1:])
    assert run(*command, exit_code=1).stderr.startswith("error 600: no broker answered")


def test_no_broker_to_ask_for_its_status(run: Run) -> None:
    status = ("broker", "status", "--url", "tcp://127.0.0.1:1", "--timeout", "0.05")
    assert run(*status, exit_code=2).stderr.startswith("error 600")
    error = json.loads(run(*status, "--json", exit_code=2).stderr)["error"]
    assert error["code"] == 600


def test_what_happens_to_a_client_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(as_json=False)
    for event in (
        Gap("s", 3, 5, "ring"),
        Switched("s", "live", 6),
        Refusal(TryLater("full")),
        Refusal(Closed("x")),
    ):
        reporter(event)
    assert str(reporter.refused) == "full (error 503)"
    printed = capsys.readouterr().err.splitlines()
    assert printed[:2] == ["gap: stream s, first 3, last 5, reason ring", "error 603: x"]
    Reporter(as_json=True)(Gap("s", 3, 5, "ring"))
    gap = json.loads(capsys.readouterr().err)["gap"]
    assert gap == {"stream": "s", "first": 3, "last": 5, "reason": "ring"}


def test_a_refusal_that_nobody_waited_for_is_raised_at_the_end(broker: Broker) -> None:
    with pytest.raises(TryLater), ConnectionOptions(broker.url).open() as client:
        client.on_event(Refusal(TryLater("full")))
