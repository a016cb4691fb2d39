"""The newcomer is in a terminal of 80x24, and notices what is not as README says. `make newcomer` is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_blocks import ROOT, blocks_of
from newcomer import Newcomer


def test_a_command_runs_in_a_terminal_of_80_columns(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    assert newcomer.run("stty size").split() == ["24", "80"]
    assert newcomer.faults == []
    assert newcomer.transcript.startswith("$ stty size\n24 80\n")


@pytest.mark.parametrize(
    "command", ["false", "printf '%081d' 0", "echo Traceback", "echo one # and the README says two"]
)
def test_a_fault_is_noticed(tmp_path: Path, command: str) -> None:
    newcomer = Newcomer(tmp_path)
    promised = "```text\ntwo\n```\n" if "two" in command else ""
    newcomer.tour(blocks_of(f"```sh\n{command}\n```\n\n{promised}"))
    assert len(newcomer.faults) == 1


def test_readme_has_the_blocks_that_a_newcomer_follows() -> None:
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"sh", "python", "text", "bash"} == {block.language for block in blocks}
    assert sum(block.language == "sh" for block in blocks) >= 6
