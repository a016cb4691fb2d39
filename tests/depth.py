"""How much tests of random examples try: little for each change, and many times as much in `make nightly`."""

from __future__ import annotations

import os

DEPTH = int(os.environ.get("MALAMUTE_DEPTH", "1"))
"""So many times as many examples as `make test` takes."""
