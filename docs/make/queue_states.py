"""The diagram of the states of a queued message in architecture.md, from the table in the code."""

from __future__ import annotations

import re
from pathlib import Path

from malamute.core.queue.state import DELAYED, DELIVERED, PENDING, READY, SETTLED, SETTLING, TRANSITIONS

PAGE = Path(__file__).parents[1] / "architecture.md"

NAMES = {
    PENDING: "PENDING",
    READY: "READY",
    DELAYED: "DELAYED",
    DELIVERED: "DELIVERED",
    SETTLING: "SETTLING",
    SETTLED: "SETTLED",
}

_BLOCK = re.compile(r"^```mermaid\nstateDiagram-v2\n.*?^```$", re.MULTILINE | re.DOTALL)


def diagram() -> str:
    """The table as a block of Mermaid."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {NAMES[PENDING]}: enqueue"]
    for state, following in TRANSITIONS.items():
        lines += [f"    {NAMES[state]} --> {NAMES[after]}: {event}" for event, after in following.items()]
    return "\n".join([*lines, f"    {NAMES[SETTLED]} --> [*]", "```"])


def with_diagram(page: str) -> str:
    """A page with the diagram as it is now in place of the one that it has."""
    page, count = _BLOCK.subn(lambda _: diagram(), page)
    assert count == 1, "the page has one diagram of states"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
