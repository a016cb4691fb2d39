"""The tests of kombu, Celery and Django as PyPI has them, in a cache outside the repository."""

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
    "django-6.0": "7b0c1f50c0759bbe6331c6a39c89ae022a84672674aeda908784617ef47d8e26",
}
"""Each version, and the digest of its file."""

FOLDERS = {"django-6.0": "tests/tasks"}
"""The folder with the tests, of all others `t`."""


def tests_of(name: str) -> Path | None:
    """Return the folder with the tests of a version in it; None if the cache has it not."""
    folder = CACHE / name
    return folder if (folder / FOLDERS.get(name, "t")).is_dir() else None


def fetch(name: str, python: str = sys.executable) -> Path:
    """Return the folder with the tests of a version in it, downloaded if need be by a Python it is for."""
    if (folder := tests_of(name)) is not None:
        return folder
    project, _, version = name.rpartition("-")
    CACHE.mkdir(parents=True, exist_ok=True)
    only_source = ["--no-deps", "--no-binary", ":all:", "-q", "-d", str(CACHE)]
    subprocess.run([python, "-m", "pip", "download", *only_source, f"{project}=={version}"], check=True)
    archive = CACHE / f"{name}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256[name]:
        archive.unlink()
        raise SystemExit(f"{archive.name} has the digest {digest}: expected {SHA256[name]}")
    with tarfile.open(archive) as tar:
        tests = f"{name}/{FOLDERS.get(name, 't')}/"
        wanted = [member for member in tar.getmembers() if member.name.startswith(tests)]
        tar.extractall(CACHE, wanted, filter="data")
    return CACHE / name
