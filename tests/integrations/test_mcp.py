"""Agents: the tools and resources of `malamute mcp`, in memory and as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from depth import nightly
from free_ports import free_port

import malamute
from malamute import aio
from malamute.access import AccessRule
from malamute.config import AccessConfig
from malamute.testing import Broker, small_config

pytest.importorskip("mcp", reason="pip install 'malamute[mcp]'")
# Behind the check that they are there.
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from malamute.cli import mcp as command
from malamute.integrations import mcp as integration
from malamute.integrations.mcp import ALLOWED, TOOLS, AgentServer

PATIENCE = 60
READING = [name for name, needed in TOOLS.items() if not needed]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return uuid4().hex


class Agent:
    """A session of an agent, and a client beside it."""

    def __init__(self, session: Client, client: aio.Client, name: str) -> None:
        self.session, self.client, self.name = session, client, name

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool."""
        result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
        return result.structured_content or {}

    async def error(self, tool: str, **arguments: Any) -> str:
        """Return the words of a refusal."""
        result = await self.session.call_tool(tool, arguments)
        assert result.is_error, result.content
        return str(result.content[0].text)  # type: ignore[union-attr]


@asynccontextmanager
async def agent(url: str, name: str, allow: Iterable[str] = ALLOWED, **options: Any) -> AsyncIterator[Agent]:
    async with (
        aio.connect(url, timeout=PATIENCE) as client,
        aio.connect(url, address=name, timeout=PATIENCE) as own,
        aio.connect(url, timeout=PATIENCE) as asker,
        Client(AgentServer(own, asker=asker, allow=allow, **options)) as session,
    ):
        yield Agent(session, client, name)


def play(scenario: Callable[[Agent], Coroutine[Any, Any, None]], url: str, name: str, **options: Any) -> None:
    async def whole() -> None:
        async with agent(url, name, **options) as one:
            await scenario(one)

    asyncio.run(whole())


def test_an_agent_reads_alone_unless_more_is_allowed(broker: Broker, name: str) -> None:
    async def scenario(one: Agent) -> None:
        assert [tool.name for tool in (await one.session.list_tools()).tools] == READING
        for tool, needed in TOOLS.items():
            if needed:
                words = f"{tool} is not allowed: expected a server that runs with --allow {needed}"
                assert await one.error(tool, mailbox=name) == words
        assert await one.call("read_mail") == {"mailbox": name, "messages": []}

    play(scenario, broker.url, name, allow=())


def test_mail_is_sent_read_and_settled_in_each_way(broker: Broker, name: str) -> None:
    async def scenario(one: Agent) -> None:
        for number in range(4):
            await one.call(
                "send_mail",
                mailbox=name,
                subject=f"n.{number}",
                body="{}",
                headers={"n": number},
                correlation="c",
            )
        read = (await one.call("read_mail", most=10))["messages"]
        assert [(mail["subject"], mail["headers"], mail["attempts"]) for mail in read] == [
            (f"n.{number}", {"n": number}, 1) for number in range(4)
        ]
        assert {(mail["sender"], mail["body"], mail["correlation"]) for mail in read} == {(name, "{}", "c")}
        ways = {"ack": {}, "nak": {"delay": 0}, "reject": {"reason": "no"}, "bounce": {"reason": "not mine"}}
        for mail, (how, more) in zip(read, ways.items(), strict=True):
            await one.call("settle_mail", mailbox=name, sequence=mail["sequence"], how=how, **more)
        again = (await one.call("read_mail", wait=PATIENCE, most=10))["messages"]
        again += (await one.call("read_mail", wait=PATIENCE))["messages"] if len(again) == 1 else []
        assert sorted((mail["subject"], mail.get("bounced"), mail["attempts"]) for mail in again) == [
            ("n.1", None, 2), ("n.3", name, 1)
        ]  # fmt: skip
        (dead,) = (await one.call("dead_letters", name=name))["messages"]
        assert (dead["subject"], dead["reason"], dead["headers"]) == ("n.2", "no", {"n": 2})
        assert (await one.call("redrive", name=name, sequences=[dead["sequence"]]))["messages"] == 1
        assert (await one.call("dead_letters", name=name))["messages"] == []
        rows = {row["name"]: row for row in (await one.call("queues"))["queues"]}
        assert (rows[name]["ready"], rows[name]["in_flight"]) == (1, 2)

    play(scenario, broker.url, name)


def test_streams_are_published_to_searched_and_explained(broker: Broker, name: str) -> None:
    async def scenario(one: Agent) -> None:
        for number in range(30):
            await one.call(
                "publish", stream=name, subject=f"t.{number % 2}", body=str(number), headers={"n": number}
            )
        found = await one.call("recent", stream=name, subjects=["t.1"], where="n > 10", most=3)
        assert [message["body"] for message in found["messages"]] == ["25", "27", "29"]
        assert found["cut"] == "3 of 10 messages are here"
        async with one.client.subscribe(name, "t.*"), one.client.subscribe(name, "u.*"):
            wants = await one.call("who_wants", stream=name, subject="t.1")
        assert (wants["subscriptions"], wants["others"]) == (1, 1)
        assert wants["selectors"][0]["criteria"] == [["topic", "t.*"]]
        (uri,) = [
            resource.uri
            for resource in (await one.session.list_resources()).resources
            if resource.name == f"stream {name}"
        ]
        content = (await one.session.read_resource(uri)).contents[0]
        assert json.loads(content.text)["last"] == 30  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="there is no mailbox"):
            await one.session.read_resource(uri.replace("/stream/", "/mailbox/"))

    play(scenario, broker.url, name)


def test_a_service_is_asked_and_the_replies_do_not_come_to_the_mailbox_of_the_agent(
    broker: Broker, name: str
) -> None:
    async def scenario(one: Agent) -> None:
        async def work() -> None:
            async with one.client.work(name) as requests:
                request = await requests.receive(PATIENCE)
                await request.reply(b"so far", final=False)
                await request.reply(request.body.upper())

        working = asyncio.create_task(work())
        replies = (await one.call("ask", service=name, subject="up", body="abc", timeout=PATIENCE))["replies"]
        await working
        assert [reply["body"] for reply in replies] == ["so far", "ABC"]
        words = await one.error("ask", service=f"no-{name}", subject="up", timeout=0.05)
        assert "gave no final reply within 0.05 s, after 0 others" in words

    play(scenario, broker.url, name)


def test_held_mail_is_in_progress_and_goes_back_when_the_session_ends(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "REPORT_SECONDS", 0.05)

    async def whole() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as client:
            await client.send(name, "a")
            await client.change("queue.set", kind="mailbox", name=name, ack_timeout=1)
            async with client.consume(name, auto_ack=False) as others:
                mine = await others.receive(PATIENCE)
                async with agent(broker.url, name) as one:
                    reading = asyncio.create_task(one.call("read_mail", wait=PATIENCE))
                    while (await client.query("mailbox", name=name))["consumers"] < 2:
                        await asyncio.sleep(0.01)
                    mine.release()
                    others.drain()
                    (held,) = (await reading)["messages"]
                    # Longer than the time after which an unreported message is delivered again.
                    assert await client.get(name) is None
                    await asyncio.sleep(1.5)
                    assert await client.get(name) is None
                    assert held["attempts"] == 1
            back = await client.get(name)
            assert back is not None
            assert back.attempts == 1
            back.ack()

    asyncio.run(whole())


def test_mail_is_held_for_a_limited_time_where_the_end_of_a_session_does_not_show(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "REPORT_SECONDS", 0.01)

    async def scenario(one: Agent) -> None:
        await one.client.send(name, "a")
        (held,) = (await one.call("read_mail"))["messages"]
        consumer = await one.client.consume(name, auto_ack=False)
        assert (await consumer.receive(PATIENCE)).sequence == held["sequence"]
        words = await one.error("settle_mail", mailbox=name, sequence=held["sequence"], how="ack")
        assert "is not held by this session" in words

    play(scenario, broker.url, name, hold_seconds=0)


def test_mail_that_the_broker_took_back_is_not_held(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "REPORT_SECONDS", 0.01)

    async def scenario(one: Agent) -> None:
        await one.client.send(name, "a")
        await one.client.send(name, "b")
        first, second = (await one.call("read_mail", most=2))["messages"]
        await one.client.change("queue.purge", kind="mailbox", name=name, sequences=[first["sequence"]])
        await asyncio.get_running_loop().run_in_executor(None, own.restart)
        for mail in (first, second):
            words = await one.error("settle_mail", mailbox=name, sequence=mail["sequence"], how="ack")
            assert "went back when the connection broke" in words
        # No offer stays behind.
        while (await one.client.query("mailbox", name=name))["consumers"]:
            await asyncio.sleep(0.01)

    with Broker(tmp_path) as own:
        play(scenario, own.url, name)


def test_answers_are_bounded_and_say_what_was_cut(broker: Broker, name: str) -> None:
    async def scenario(one: Agent) -> None:
        large = {f"h{number}": "x" * 500 for number in range(20)}
        await one.client.send(name, "large", b"\xff" * 10_000, large)
        (mail,) = (await one.call("read_mail"))["messages"]
        assert (len(mail["body_base64"]), len(mail["headers"])) == (integration.TEXT_CHARS, 7)
        assert mail["cut"] == "13 of 20 headers, 9336 of 13336 characters of the body"
        for _ in range(integration.ROWS_MAX):
            await one.client.publish_nowait(name, "a", "y" * 5_000)
        await one.client.publish(name, "a", "y" * 5_000)
        answer = await one.call("recent", stream=name, most=integration.ROWS_MAX)
        assert len(json.dumps(answer)) < integration.ANSWER_CHARS + 1_000
        assert answer["cut"] == f"{len(answer['messages'])} of 51 messages are here"
        for _ in range(integration.SEARCHED_MAX):
            await one.client.publish_nowait(name, "b")
        await one.client.flush()
        answer = await one.call("recent", stream=name, subjects=["a"])
        assert answer == {
            "messages": [], "cut": "messages before 52 of 1 to 1051 were not looked at"
        }  # fmt: skip
        for _ in range(integration.ROWS_MAX + 1):
            await one.client.send(f"d-{name}", "a", assurance="none")
        async with one.client.consume(f"d-{name}", auto_ack=False, credit=100) as consumer:
            for _ in range(integration.ROWS_MAX + 1):
                (await consumer.receive(PATIENCE)).reject()
        while (await one.client.query("mailbox", name=f"d-{name}"))["dead_letters"] <= integration.ROWS_MAX:
            await asyncio.sleep(0.01)
        dead = await one.call("dead_letters", name=f"d-{name}")
        assert dead["cut"] == "there are more than these 50 messages: call again with `after`"
        after = dead["messages"][-1]["sequence"]
        assert len((await one.call("dead_letters", name=f"d-{name}", after=after))["messages"]) == 1

    play(scenario, broker.url, name)


def test_an_agent_holds_so_many_messages_and_no_more(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "HELD_MAX", 2)

    async def scenario(one: Agent) -> None:
        for _ in range(3):
            await one.client.send(name, "a")
        (first,) = (await one.call("read_mail"))["messages"]
        assert "1 messages are held: expected at most 2" in await one.error("read_mail", most=2)
        await one.call("read_mail")
        assert "2 messages are held" in await one.error("read_mail")
        await one.call("settle_mail", mailbox=name, sequence=first["sequence"], how="ack")
        assert len((await one.call("read_mail"))["messages"]) == 1

    play(scenario, broker.url, name)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("read_mail", {"wait": -1}, "wait"),
        ("read_mail", {"wait": 301}, "wait"),
        ("read_mail", {"most": 11}, "most"),
        ("read_mail", {"mailbox": "$sys"}, "reserved for the broker"),
        ("settle_mail", {"mailbox": "m", "sequence": 1, "how": "eat"}, "how"),
        ("settle_mail", {"mailbox": "m", "sequence": 1, "how": "ack"}, "message 1 of 'm' is not held"),
        ("settle_mail", {"mailbox": "m", "sequence": 1, "how": "ack", "reason": "x"}, "for reject or bounce"),
        ("settle_mail", {"mailbox": "m", "sequence": 1, "how": "ack", "delay": 1}, "expected one for nak"),
        ("send_mail", {"mailbox": "m\n", "subject": "a"}, "invalid name"),
        ("send_mail", {"mailbox": "m", "subject": "a", "headers": {"h": []}}, "headers"),
        ("send_mail", {"mailbox": "m", "subject": "a", "ttl": 1e30}, "invalid ttl"),
        ("publish", {"stream": "..", "subject": "a"}, "invalid name"),
        ("publish", {"stream": "s"}, "subject"),
        ("recent", {"stream": "no-such-stream"}, "there is no stream"),
        ("recent", {"stream": "$sys", "where": "a ="}, "expected a value"),
        ("dead_letters", {"name": "no-such-mailbox"}, "no-such-mailbox"),
        ("redrive", {"name": "no-such-mailbox", "kind": "stream"}, "kind"),
        ("redrive", {"name": "no-such-mailbox"}, "no-such-mailbox"),
        ("no_such_tool", {}, "Unknown tool"),
    ],
)
def test_bad_input_is_explained_to_the_agent(
    broker: Broker, name: str, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async def scenario(one: Agent) -> None:
        assert words in await one.error(tool, **arguments)

    play(scenario, broker.url, name)


def test_the_rights_are_those_of_the_user(name: str) -> None:
    rules = [f"create,receive,send mailbox/{name}", "subscribe,create,publish stream/#", "view stream/#"]
    access = AccessConfig(rules=tuple(map(AccessRule.parse, rules)))

    async def scenario(one: Agent) -> None:
        assert await one.call("read_mail") == {"mailbox": name, "messages": []}
        assert "'receive mailbox/boss' is not allowed" in await one.error("read_mail", mailbox="boss")
        assert "'send mailbox/boss/a' is not allowed" in await one.error(
            "send_mail", mailbox="boss", subject="a"
        )
        assert "'view broker/mailboxes'" in await one.error("queues")
        # Nothing that the user may not list.
        assert (await one.session.list_resources()).resources == []

    with Broker(config=replace(small_config(), access=access)) as strict:
        play(scenario, strict.url, name)


# As a process


def malamute_mcp(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "malamute", "mcp", "-u", url, *arguments]


class Host:
    """A host that talks to the server over pipes, line by line."""

    def __init__(self, url: str, name: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(malamute_mcp(url, "--address", name), stdin=pipe, stdout=pipe)

    def greet(self) -> None:
        self.say(
            id=1,
            method="initialize",
            params={
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        )
        assert self.hear()["id"] == 1
        self.say(method="notifications/initialized")

    def say(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def read(self) -> str:
        self.say(id=2, method="tools/call", params={"name": "read_mail", "arguments": {}})
        return str(self.hear()["result"]["structuredContent"]["messages"][0]["subject"])

    def vanish(self) -> None:
        """Close the pipes, as the system does when a host is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def test_mail_goes_back_at_once_when_the_host_or_the_server_is_killed(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        client.send(name, "a")
        hosts = [Host(broker.url, name), Host(broker.url, f"{name}-2")]
        for host in hosts:
            host.greet()
        assert hosts[0].read() == "a"
        with client.consume(name, auto_ack=False) as others:
            assert others.poll() is None
            hosts[0].vanish()
            back = others.receive(PATIENCE)
            assert back.attempts == 1
            back.ack()
        assert hosts[0].process.wait(PATIENCE) == 0
        client.send(f"{name}-2", "b")
        assert hosts[1].read() == "b"
        with client.consume(f"{name}-2") as others:
            hosts[1].process.kill()
            assert others.receive(PATIENCE).subject == "b"
        hosts[1].vanish()
        assert hosts[1].process.wait(PATIENCE) == -signal.SIGKILL


@nightly
def test_a_host_with_its_own_client_over_pipes_and_http(broker: Broker, name: str) -> None:
    async def over(server: Any) -> None:
        async with Client(server) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == [*READING, "settle_mail"]
            result = await session.call_tool("read_mail", {})
            assert result.structured_content == {"mailbox": name, "messages": []}

    command, *arguments = malamute_mcp(broker.url, "--address", name, "--allow", "settle")
    asyncio.run(over(StdioServerParameters(command=command, args=arguments)))
    place = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([command, *arguments, "--http", place], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().decode() == f"http://{place}/mcp\n"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                asyncio.run(over(f"http://{place}/mcp"))
                break
            except* Exception:
                time.sleep(0.1)
        else:
            pytest.fail("no answer over HTTP")
        process.terminate()
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


def test_the_command_line_refuses_what_is_wrong(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from click.testing import CliRunner

    from malamute.cli.root import cli

    def error(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["mcp", "-u", broker.url, *arguments])
        return result.exit_code, result.output

    assert error("--allow", "eat")[0] == 2
    assert "'eat': expected send, settle, redrive" in error("--allow", "eat")[1]
    assert "expected HOST:PORT" in error("--http", "somewhere")[1]
    assert "has no log-in: expected an address of this one" in error("--http", "0.0.0.0:1")[1]
    monkeypatch.delitem(sys.modules, "malamute.integrations.mcp")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    code, words = error()
    assert (code, words.splitlines()[0]) == (1, "error 701: mcp is missing: pip install 'malamute[mcp]'")


def test_the_names_to_allow_are_the_same_at_both_places() -> None:
    assert command.ALLOWED == ALLOWED == tuple(dict.fromkeys(filter(None, TOOLS.values())))
