"""The console of `malamute broker run --console`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from malamute.cli import broker
from malamute.cli.root import cli

ELSEWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "environ", "address"),
    [
        ((), {}, None),
        ((), {"MALAMUTE_GATEWAY_LISTEN": ELSEWHERE}, None),
        (("--console",), {}, "127.0.0.1:8080"),
        (("--console",), {"MALAMUTE_GATEWAY_LISTEN": ELSEWHERE}, ELSEWHERE),
        (("--console", "127.0.0.1:2"), {"MALAMUTE_GATEWAY_LISTEN": ELSEWHERE}, "127.0.0.1:2"),
        ((), {"MALAMUTE_CONSOLE": "127.0.0.1:3", "MALAMUTE_GATEWAY_LISTEN": ELSEWHERE}, "127.0.0.1:3"),
    ],
)
def test_the_console_is_where_the_option_or_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], environ: dict[str, str], address: str | None
) -> None:
    chosen: list[str | None] = []
    monkeypatch.setattr(broker, "_run", lambda read, console, as_json: chosen.append(console))
    result = CliRunner(env=environ).invoke(cli, ["broker", "run", *arguments])
    assert (result.exit_code, chosen) == (0, [address]), result.output
