"""Fuzzing that is led by coverage: look for inputs of a front door that take a way not taken so far.

    python tests/fuzz/fuzz.py                        each target for 30 seconds
    python tests/fuzz/fuzz.py codec --seconds 600    one of them
    python tests/fuzz/fuzz.py codec --keep           and keep what takes a way that nothing kept takes

It begins with the kept corpus and with what earlier runs have found (`.fuzz/TARGET` in the checkout). An
input that fails is left in `.fuzz/findings/TARGET-…`, and reported with its traceback. Once mended, it goes
into the corpus.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import threading
from hashlib import sha1
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

WORK = ROOT / ".fuzz"
FINDINGS = WORK / "findings"

MEMORY_BYTES = 2 << 30
"""What the process may take. An input of some hundred bytes that needs more fails."""

HANG_SECONDS = 20

MISSING = (
    "fuzzing needs atheris (Python up to 3.12, Linux): .venv/bin/pip install -c constraints.txt -e '.[fuzz]'"
)


def explore(name: str, seconds: int) -> None:
    """Look for new inputs. Ends the process."""
    import atheris

    with atheris.instrument_imports(include=["malamute"]):
        from fuzz_targets import TARGETS

    target = TARGETS[name]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    options: dict[str, Any] = {}
    if change := target.mutate:
        options["custom_mutator"] = lambda data, size, seed: change(bytes(data), size, seed, atheris.Mutate)
    arguments = [
        sys.argv[0],
        *(f"-max_total_time={seconds}", f"-max_len={target.size_max}", f"-timeout={HANG_SECONDS}"),
        *(f"-artifact_prefix={FINDINGS / name}-", "-rss_limit_mb=0", "-print_final_stats=1", "-verbosity=0"),
        str(WORK / name),
    ]
    atheris.Setup(arguments, lambda data: target.run(bytes(data)), **options)
    atheris.Fuzz()


class Ways:
    """The lines of Malamute that an input runs, in any thread, each with the line before.

    Threads that were there before it was made are not seen.
    """

    def __init__(self) -> None:
        self._found: set[tuple[str, int, int]] = set()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def of(self, name: str, data: bytes) -> set[tuple[str, int, int]]:
        """Run an input. Returns its ways."""
        from fuzz_targets import TARGETS

        self._found = set()
        TARGETS[name].run(data)
        return self._found

    def close(self) -> None:
        """See no more."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as its documentation has it

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if "/malamute/" not in path:
            return None
        before = 0

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                self._found.add((path, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line


def keep(name: str) -> None:
    """Add to the corpus what takes ways that nothing in it takes, most of them first, while there is room."""
    from fuzz_targets import CORPUS, TARGETS

    target, directory = TARGETS[name], CORPUS / name
    directory.mkdir(parents=True, exist_ok=True)
    kept = [path.read_bytes() for path in target.kept(name)]
    inputs = sorted(
        {path.read_bytes() for path in (WORK / name).iterdir()}, key=lambda data: (len(data), data)
    )
    ways = Ways()
    try:
        known = set().union(*(ways.of(name, data) for data in kept))
        new = {data: ways.of(name, data) - known for data in inputs}
    finally:
        ways.close()
        target.close()
    room = target.keep_bytes - sum(map(len, kept))
    for _ in range(target.keep_max - len(kept)):
        new = {data: found - known for data, found in new.items() if len(data) <= room and not found <= known}
        if not new:
            break
        best = max(new, key=lambda data: len(new[data]))
        known |= new.pop(best)
        room -= len(best)
        (directory / sha1(best).hexdigest()[:12]).write_bytes(best)


def start(name: str, seconds: int) -> bool:
    """Explore one target in a process of its own. Returns whether nothing failed."""
    from fuzz_targets import TARGETS

    (WORK / name).mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    for path in TARGETS[name].kept(name):
        (WORK / name / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, __file__, name, "--seconds", str(seconds), "--explore"]
    # The fuzzer ends a process at once, and leaves the stores that it has made.
    with TemporaryDirectory(prefix="malamute-fuzz-") as temporary:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": temporary},
        )
    counted = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    count = counted[-1].split()[-1] if counted else "?"
    print(f"{name}: {count} inputs, {len([*(WORK / name).glob('*')])} kept for the next run", flush=True)
    if done.returncode:
        print(done.stdout[-4_000:], done.stderr[-1_500:], sep="\n", flush=True)
    return not done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--explore", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        import atheris  # noqa: F401  # only whether it is there
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 2
    if given.explore:
        explore(given.targets[0], given.seconds)
    from fuzz_targets import TARGETS

    if unknown := {*given.targets} - {*TARGETS}:
        parser.error(f"unknown target {min(unknown)!r}: expected one of {', '.join(TARGETS)}")
    good = True
    for name in given.targets or TARGETS:
        if given.seconds:
            good &= start(name, given.seconds)
        if given.keep:
            keep(name)
    return not good


if __name__ == "__main__":
    sys.exit(main())
