"""The sources of kombu and Celery with their tests, as PyPI has them, in a cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

CACHE = Path(os.environ.get("MALAMUTE_UPSTREAM") or Path.home() / ".cache" / "malamute-upstream")
"""The cache: `make upstream` fills it."""

SHA256 = {
    "kombu-5.7.0": "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
    "celery-5.7.0": "6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0",
}
"""Each version, and the digest of its file."""


def tests_of(name: str) -> Path | None:
    """Return the folder with the `t` of a version; None if the cache has it not."""
    folder = CACHE / name
    return folder if (folder / "t").is_dir() else None


def fetch(name: str) -> Path:
    """Return the folder with the `t` of a version, downloaded if need be."""
    if (folder := tests_of(name)) is not None:
        return folder
    project, _, version = name.rpartition("-")
    CACHE.mkdir(parents=True, exist_ok=True)
    only_source = ["--no-deps", "--no-binary", ":all:", "-q", "-d", str(CACHE)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *only_source, f"{project}=={version}"], check=True
    )
    archive = CACHE / f"{name}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256[name]:
        archive.unlink()
        raise SystemExit(f"{archive.name} has the digest {digest}: expected {SHA256[name]}")
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar.getmembers() if member.name.startswith(f"{name}/t/")]
        tar.extractall(CACHE, wanted, filter="data")
    return CACHE / name
