"""Every block of the README, tutorial, guides and operator's pages is run, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from docs_blocks import ROOT, Reader, blocks_of, pages, pattern_of, runs_its_own_broker
from free_ports import free_port

from malamute.errors import ConfigError
from malamute.testing import Broker


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    with ExitStack() as stack:
        if runs_its_own_broker(blocks):
            url = f"tcp://127.0.0.1:{free_port()}"
        else:
            url = stack.enter_context(Broker(tmp_path / "malamute-data")).url
        reader = Reader(tmp_path, url)
        stack.callback(reader.leave)
        for block in blocks:
            try:
                reader.follow(block)
            except BaseException as error:
                error.add_note(f"{page}:{block.line}")
                raise


def test_what_is_printed_is_compared_in_full() -> None:
    assert pattern_of("a …\n…\nz\n").fullmatch("a b c\nmore\nand more\nz\n")
    assert pattern_of("a\n").fullmatch("a\n")
    assert not pattern_of("a\n").fullmatch("a\nb\n")
    assert not pattern_of("a …\n").fullmatch("b c\n")


def test_a_fence_in_a_wrong_form_is_not_overlooked() -> None:
    with pytest.raises(AssertionError, match="wrong form"):
        blocks_of("```sh linenums\nfalse\n```\n")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with Broker() as broker:
        reader = Reader(tmp_path, broker.url)
        yield reader
        reader.leave()


@pytest.mark.parametrize(
    "markdown",
    [
        "```sh\nexit 3\n```\n",
        "```sh\necho one\n```\n\n```text\ntwo\n```\n",
        "```python\nprint(1)\n```\n\n```text\n1\n2\n```\n",
        '```sh title="Terminal 2"\nfalse\n```\n',
        '```sh title="Terminal 2"\nmalamute sub a\n```\n\n```sh\nmalamute sub a -n 1 --wait 0\n```\n',
        '```toml\n[storage]\nsize = "none"\n```\n',
        "```json\n{\n```\n",
        "```py\nimport malamute\n```\n",
    ],
)
def test_what_a_page_gets_wrong_is_found(reader: Reader, markdown: str) -> None:
    blocks = blocks_of(markdown)
    for block in blocks[:-1]:
        reader.follow(block)
    with pytest.raises((AssertionError, ValueError, ConfigError)):
        reader.follow(blocks[-1])


def test_a_language_that_nobody_knows_is_refused(reader: Reader) -> None:
    with pytest.raises(KeyError):
        reader.follow(blocks_of("```perl\nprint 1\n```\n")[0])


def test_a_terminal_runs_on_until_the_next_command_is_typed(reader: Reader) -> None:
    page = """
```sh title="Terminal 2"
malamute sub weather
```

```sh
malamute pub weather temp.oslo 12
```

```text title="Terminal 2"
1	temp.oslo	12
```

```sh title="Terminal 2"
malamute sub weather --start first
```

```text title="Terminal 2"
1	temp.oslo	12
```
"""
    for block in blocks_of(page):
        reader.follow(block)
