"""Folders of the tests with modules that other folders import; this module puts them on the path."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = ("", "acceptance", "bench", "cli", "core", "docs", "journal", "mutants", "protocol", "torture")
PATHS = [str(HERE / name) for name in FOLDERS]

sys.path += [path for path in PATHS if path not in sys.path]
