"""Ask frames of Spark that are used again many random pairs of conditions, and DuckDB the same.

python tests/spark/many_frames.py --pairs 500 --seed 7
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

TEST = Path(__file__).with_name("test_frames.py")


def main() -> int:
    """Run the test with so many pairs, and return the exit code of pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=2035)
    options = parser.parse_args()
    os.environ |= {
        "MALAMUTE_EXAMPLES": f"{options.pairs}",
        "MALAMUTE_SEED": f"{options.seed}",
        "MALAMUTE_TESTS_NEED_JAVA": "1",
    }
    test = f"{TEST}::test_whatever_was_asked_before_a_query_has_its_rows"
    return pytest.main(["-q", "-p", "no:xdist", "--timeout=3600", test])


if __name__ == "__main__":
    sys.exit(main())
