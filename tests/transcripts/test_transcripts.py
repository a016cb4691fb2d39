"""Each transcript is what the broker says. MALAMUTE_REWRITE=1 writes them again: review the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from transcript import play

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))
PROTOCOL = HERE.parents[1] / "docs" / "protocol.md"

by_transcript = pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)


@by_transcript
def test_the_broker_says_what_the_transcript_says(path):
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if os.environ.get("MALAMUTE_REWRITE"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text


@by_transcript
def test_a_transcript_names_the_sections_that_it_proves(path):
    headings = set(re.findall(r"^#+ (.+)$", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE))
    proves = re.findall(r"^# Proves: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(proves) == 1
    assert set(proves[0].split("; ")) <= headings


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) > 10
