"""A short form of `fuzz_live`: real processes, each door, and a client that works beside it."""

from __future__ import annotations

from pathlib import Path

from fuzz_live import DOORS, fuzz


def test_spoiled_input_by_each_door_harms_no_process_and_no_other_client(tmp_path: Path) -> None:
    done = fuzz(3.0, 11, [*DOORS], tmp_path)
    print(done)
    assert done["by_door"].keys() == DOORS.keys()
    assert done["rounds"] > 0
