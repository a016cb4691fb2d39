"""`make release`: a wheel and an sdist in dist/, each checked in a clean environment.

The steps, in this order; the first that fails ends it:

1. The version has a dated section of the changelog and a recorded store; git has nothing to commit.
2. Wheel and sdist are built in an environment of their own.
3. Each is installed on every Python that is here (3.11 to 3.13): the command and a broker have to work.
4. `hadolint` looks at the image files, where it is installed.

`--draft` leaves the first step out.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
IMAGES = ("deploy/Dockerfile", "deploy/spark/Dockerfile")
SMOKE = """
import malamute
from malamute.testing import Broker

with Broker() as broker, malamute.connect(broker.url) as client:
    client.publish("weather", "temp.oslo", json=-3.5)
    assert [message.json() for message in client.history("weather")] == [-3.5]
print("malamute", malamute.__version__)
"""


def version() -> str:
    """Return the version of this checkout."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "malamute" / "version.py").read_text())
    assert found is not None
    return found[1]


def problems(release: str) -> list[str]:
    """Return the reasons why this checkout cannot be released as it is."""
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    found = []
    if not re.search(rf"^## {re.escape(release)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        found.append(f"docs/changelog.md has no section '## {release} (YYYY-MM-DD)'")
    if not (ROOT / "tests" / "acceptance" / "data" / f"broker-{release}.tar.xz").exists():
        found.append("no recorded store: run python tests/acceptance/record_broker.py, and commit its file")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    if status.returncode or status.stdout:
        found.append("git has changes that are not committed")
    return found


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, and return its output. One that fails ends the release."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(python: str, directory: Path) -> Path:
    """Make an environment, and return its interpreter."""
    run(python, "-m", "venv", directory)
    return directory / "bin" / "python"


def build(work: Path) -> list[Path]:
    """Return the wheel and the sdist in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    python = environment(sys.executable, work / "build")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "hatchling")
    run(python, "-m", "hatchling", "build", "-d", DIST)
    return sorted(DIST.iterdir())


def check(package: Path, python: str, work: Path) -> str:
    """Install a package in a clean environment, and return the line that a program with it prints."""
    inside = environment(python, work / f"{python}-{package.suffix[1:]}")
    run(
        inside,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        "constraints.txt",
        package,
    )
    run(inside.with_name("malamute"), "--version", cwd=work)
    return run(inside, "-W", "error", "-c", SMOKE, cwd=work).strip()


def pythons() -> list[str]:
    """Return the commands of the supported Pythons that are here."""
    found = []
    for name in (f"python{number}" for number in PYTHONS):
        with contextlib.suppress(FileNotFoundError):
            # One of pyenv is on the path even where its version is not installed.
            if subprocess.run([name, "-c", ""], capture_output=True).returncode == 0:
                found.append(name)
    return found


def main() -> None:
    """Make a release, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draft", action="store_true")
    options = parser.parse_args()
    release = version()
    if not options.draft and (found := problems(release)):
        sys.exit("\n".join(found))
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        packages = build(work)
        for python in pythons():
            for package in packages:
                print(f"{python}: {package.name}: {check(package, python, work)}", flush=True)
    if lint := shutil.which("hadolint"):
        for image in IMAGES:
            print(f"{image}: {run(lint, image).strip() or 'clean'}")
    else:
        print("hadolint is not installed: the image files are not linted")
    tag = f"git tag -a v{release} -m 'Malamute {release}'"
    print(f"dist/ has {release}. Tag it: {tag} && git push origin v{release}")


if __name__ == "__main__":
    main()
