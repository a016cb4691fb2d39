"""The front doors, each with what is to hold of any bytes that come in by it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import fuzz_client  # noqa: E402  # they import what stands there
import fuzz_dialogue  # noqa: E402
import fuzz_frames  # noqa: E402
import fuzz_gateway  # noqa: E402
import fuzz_journal  # noqa: E402
import fuzz_login  # noqa: E402
import fuzz_pair  # noqa: E402
import fuzz_requests  # noqa: E402
import fuzz_selectors  # noqa: E402
import fuzz_sessions  # noqa: E402
import fuzz_settings  # noqa: E402
import fuzz_start  # noqa: E402
import fuzz_texts  # noqa: E402
import fuzz_wire  # noqa: E402
import shared_folders  # noqa: E402, F401  # the folders of the modules below

CORPUS = HERE / "corpus"
"""What has been found worth keeping, in a directory for each target; `make test` tries all of it."""

Mutator = Callable[[bytes, int, int, fuzz_frames.Change], bytes]


class Target(NamedTuple):
    """A function that raises if something is wrong with how its bytes are taken."""

    run: Callable[[bytes], None]
    mutate: Mutator | None = None
    """How an input is changed that would else seldom get past its form."""
    size_max: int = 1_024
    keep_bytes: int = 10_000
    """What the inputs may have together that are kept."""
    keep_max: int = 80
    """How many of them there may be."""
    close: Callable[[], None] = lambda: None
    """Ends what is there for many inputs."""

    def kept(self, name: str) -> list[Path]:
        """The inputs that are kept."""
        return sorted((CORPUS / name).glob("*"))


TARGETS: Mapping[str, Target] = {
    "codec": Target(fuzz_wire.codec, fuzz_frames.mutate_frames, keep_bytes=16_000),
    "record": Target(fuzz_wire.record, fuzz_frames.mutate_frames),
    "payload": Target(fuzz_wire.payload, fuzz_frames.mutate_frames),
    "names": Target(fuzz_wire.names),
    "journal": Target(fuzz_journal.journal),
    "operations": Target(fuzz_journal.store_codec, fuzz_frames.mutate_frames),
    "streams": Target(fuzz_journal.streams),
    "pair-frames": Target(fuzz_pair.frames),
    "pair-value": Target(fuzz_pair.value, size_max=2_048),
    "expression": Target(fuzz_selectors.expression),
    "selectors": Target(fuzz_selectors.selectors),
    "saved-index": Target(fuzz_selectors.saved_index, fuzz_frames.mutate_frames),
    "rule": Target(fuzz_selectors.rule),
    "configuration": Target(fuzz_settings.configuration, size_max=2_048),
    "environment": Target(fuzz_settings.environment),
    "accounts": Target(fuzz_settings.accounts),
    "start": Target(fuzz_start.start, size_max=64),
    "zap": Target(fuzz_login.zap),
    "token": Target(fuzz_login.token),
    "dialogue": Target(
        fuzz_dialogue.dialogue, fuzz_dialogue.mutate, size_max=4_096, keep_bytes=50_000, keep_max=50
    ),
    "client": Target(fuzz_client.client, fuzz_client.mutate, size_max=4_096, keep_bytes=20_000),
    "http": Target(
        fuzz_gateway.http,
        fuzz_requests.mutate,
        size_max=4_096,
        keep_bytes=30_000,
        close=fuzz_gateway.SITE.close,
    ),
    "websocket": Target(fuzz_gateway.websocket, fuzz_gateway.mutate_commands, close=fuzz_gateway.SITE.close),
    "live": Target(
        fuzz_sessions.live,
        fuzz_sessions.mutate,
        size_max=4_096,
        keep_bytes=30_000,
        keep_max=60,
        close=fuzz_sessions.RUNNING.close,
    ),
    "body": Target(fuzz_texts.body, fuzz_requests.mutate_body),
    "command-line": Target(fuzz_texts.command_line),
    "contexts": Target(fuzz_texts.client_contexts),
    "manifest": Target(fuzz_texts.manifest, size_max=2_048),
    "topic-selector": Target(fuzz_texts.topic_selector),
}
