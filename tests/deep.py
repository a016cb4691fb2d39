"""Run the tests of random examples with many times as many, and with new ones.

python tests/deep.py --depth 25 --seed 7
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SIZED = [str(path) for path in HERE.rglob("test_*.py") if "from depth import" in path.read_text("utf-8")]
"""Tests of which `depth` says how much they try, beside those of hypothesis."""


def main() -> int:
    """Run the tests, and return the first exit code of pytest that is no success."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--depth", type=int, default=25)
    parser.add_argument("--seed", type=int, default=2035)
    options = parser.parse_args()
    os.environ |= {
        "MALAMUTE_DEPTH": f"{options.depth}",
        "MALAMUTE_SEED": f"{options.seed}",
        "MALAMUTE_TESTS_NEED_JAVA": "1",
    }
    new = ["--hypothesis-profile=explore", f"--hypothesis-seed={options.seed}"]
    runs = [["-m", "hypothesis", *new, str(HERE)], ["-m", "not hypothesis", *SIZED]]
    codes = [pytest.main(["-q", "-n", "2", "--timeout=7200", *run]) for run in runs]
    return next((int(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
