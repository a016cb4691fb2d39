"""`malamute gateway`: a process that serves until a signal, and refuses what would be open to everybody."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from cli_commands import TIMEOUT, Run, Start, code_of_one_asked_again

from malamute.testing import Broker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_gateway_prints_where_it_serves_until_a_signal(
    start_anew: Start, broker: Broker, number: int
) -> None:
    gateway = start_anew("gateway", "run", "--listen", "127.0.0.1:0", "--json")
    assert gateway.stdout is not None
    [url] = json.loads(gateway.stdout.readline())["urls"]
    with urlopen(f"{url}/ready", timeout=TIMEOUT) as answer:
        assert json.load(answer) == {"status": "ready"}
    gateway.send_signal(number)
    assert gateway.communicate(timeout=TIMEOUT) == ("", "")
    assert gateway.returncode == 0


def test_who_asks_a_gateway_to_end_again_and_again_has_it_end_in_order(
    start_anew: Start, broker: Broker
) -> None:
    gateway = start_anew("gateway", "run", "--listen", "127.0.0.1:0")
    assert gateway.stdout is not None
    gateway.stdout.readline()
    assert code_of_one_asked_again(gateway, signal.SIGINT) == 0


def test_the_updates_of_mercure_are_in_the_stream_that_was_named(
    start: Start, run: Run, broker: Broker
) -> None:
    gateway = start("gateway", "run", "--listen", "127.0.0.1:0", "--mercure-stream", "site", "--json")
    assert gateway.stdout is not None
    [url] = json.loads(gateway.stdout.readline())["urls"]
    with urlopen(f"{url}/.well-known/mercure", b"topic=news&data=x", timeout=TIMEOUT) as answer:
        assert answer.read().startswith(b"#1@")
    assert run("sub", "site", "--start", "first", "-n", "1").stdout.split("\t")[1:] == ["news", "x\n"]


def test_on_loopback_credentials_are_asked_for_where_that_is_wanted(start: Start, broker: Broker) -> None:
    gateway = start("gateway", "run", "--listen", "127.0.0.1:0", "--require-credentials", "--json")
    assert gateway.stdout is not None
    [url] = json.loads(gateway.stdout.readline())["urls"]
    with urlopen(f"{url}/ready", timeout=TIMEOUT) as answer:
        assert answer.status == 200
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{url}/v1/streams/weather/messages", timeout=TIMEOUT)
    with refused.value as answer:
        assert answer.code == 401


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.org:0"])
def test_a_gateway_beyond_this_machine_needs_tls_or_a_word(run: Run, listen: str) -> None:
    result = run("gateway", "run", "--listen", listen, exit_code=1)
    assert "error 700" in result.stderr
    assert "--tls-cert" in result.stderr


@pytest.mark.parametrize("listen", ["", "8080", "localhost", ":1", "localhost:x", "localhost:65536"])
def test_what_is_no_address_is_refused(run: Run, listen: str) -> None:
    result = run("gateway", "run", "--listen", listen, exit_code=1)
    assert "expected HOST:PORT" in result.stderr


def test_a_proxy_that_is_no_network_is_refused(run: Run) -> None:
    refused = run("gateway", "run", "--proxy", "10.0.0.0/99", exit_code=1)
    assert "expected a network" in refused.stderr


@pytest.mark.parametrize("option", ["--user-rate", "--address-rate"])
@pytest.mark.parametrize("rate", ["10m", "0", "-1", "x"])
def test_a_rate_is_a_number_above_zero_and_no_duration(run: Run, option: str, rate: str) -> None:
    refused = run("gateway", "run", option, rate, exit_code=2)
    assert f"Invalid value for '{option}'" in refused.stderr


def test_help_loads_nothing_that_serves_http() -> None:
    code = (
        "import sys, malamute; from malamute.cli.root import cli\n"
        "for words in ['--help'], ['gateway', '--help'], ['gateway', 'run', '--help']:\n"
        "    cli(words, standalone_mode=False)\n"
        "assert not {'starlette', 'uvicorn', 'httptools', 'websockets'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_what_is_missing_is_named_with_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("malamute.gateway"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("gateway", "run", exit_code=1)
    assert "error 701" in result.stderr
    assert "malamute[http]" in result.stderr


@pytest.mark.parametrize(
    "prefix", ["malamute", "/", "/a/", "/a//b", "/..", "/a b", "https://x/a", "/%2e", "/a?b"]
)
def test_a_prefix_that_is_no_path_is_refused(run: Run, prefix: str) -> None:
    refused = run("gateway", "run", "--prefix", prefix, "--listen", "127.0.0.1:0", exit_code=1)
    assert "expected a path such as /malamute" in refused.stderr
