"""Registers with the engines as they are: one swap wins, a stopped server is given up in time."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from depth import nightly
from msgspec.structs import replace
from real_engines import bucket, etcd, moto, postgresql

from malamute.errors import ConfigError, MalamuteError, Malformed, NotInstalled, TryLater
from malamute.pair import state
from malamute.pair.register import Register, open_register
from malamute.pair.state import Level, Member, PairValue

VALUE = state.created(b"p" * 16, "a", Member(b"a" * 16, Level(7, 17, 1), "tcp://a:1"), 1, b"0" * 16)


def fresh(value: PairValue = VALUE) -> PairValue:
    return replace(value, change=secrets.token_bytes(16))


@contextmanager
def opened(url: str) -> Iterator[Register]:
    register = open_register(url)
    try:
        yield register
    finally:
        register.close()


def patient(act: Callable[[], object]) -> object:
    """Do it when the server is up."""
    for _ in range(100):
        try:
            return act()
        except TryLater as error:
            last = error
            threading.Event().wait(0.05)
    raise last


def holds(url: str, *, is_raced: bool = True) -> None:
    """A value is created once, read as it was, and swapped for what was read alone."""
    with opened(url) as one, opened(url) as other:
        patient(one.prove)
        assert one.read() == (None, None)
        first, second = fresh(), fresh()
        assert one.swap(first, None)
        assert not other.swap(second, None)
        value, version = other.read()
        assert value == first
        assert other.swap(second, version)
        assert not one.swap(fresh(), version)
        value, version = one.read()
        assert value == second
        assert one.swap(first, version), "the register does not know that this has been there"
        assert not one.swap(fresh(), version)
        other.prove()
    if is_raced:
        races(url)


def races(url: str, rounds: int = 25) -> None:
    """Four threads swap as fast as they can: no version is won twice."""
    wins: Counter[str] = Counter()
    lock = threading.Lock()
    faults: list[BaseException] = []

    def race() -> None:
        try:
            with opened(url) as register:
                for _ in range(rounds):
                    value, version = register.read()
                    assert value is not None
                    # A busy machine may keep a thread from its turn: the outcome is unknown then.
                    with suppress(TryLater):
                        if register.swap(fresh(value), version):
                            with lock:
                                wins[repr(version)] += 1
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(wins) >= rounds / 2
    assert wins.most_common(1)[0][1] == 1


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a server with all its children, which its clients do not notice."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", f"{process}"], capture_output=True, text=True)
    processes = [process, *map(int, listed.stdout.split())]
    for one in processes:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in processes:
            os.kill(one, signal.SIGCONT)


def gives_up(url: str, process: int) -> None:
    """A stopped server is given up, also by a connection that was there, and used again when it goes on."""
    with opened(url) as register, opened(url) as new:
        value, version = register.read()
        assert value is not None
        with stopped(process):
            with pytest.raises(TryLater, match="did not say whether it swapped"):
                register.swap(fresh(value), version)
            with pytest.raises(TryLater, match="does not answer"):
                new.read()
        patient(register.read)
        patient(new.prove)


def test_a_register_in_a_file(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/pair.json"
    holds(url)
    path = tmp_path / "pair.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"{}")
    with opened(url) as register, pytest.raises(Malformed, match="of no pair"):
        register.read()
    path.unlink()
    with opened(url) as register:
        assert register.read() == (None, None)
        tmp_path.joinpath("pair.json.lock").unlink()
        tmp_path.joinpath("pair.json.lock").mkdir()
        with pytest.raises(TryLater):
            register.swap(VALUE, None)


def test_a_register_in_a_bucket() -> None:
    with bucket(compares=True) as url:
        holds(url)
    with opened(url) as register:
        with pytest.raises(TryLater, match="did not say whether it swapped"):
            register.swap(VALUE, None)
        with pytest.raises(TryLater, match="does not answer"):
            register.read()


def test_a_bucket_that_ignores_conditions_is_found_out() -> None:
    with bucket(compares=False) as url, opened(url) as register:
        with pytest.raises(ConfigError, match="ignores conditions: expected a store that compares"):
            register.prove()
        assert register.read() == (None, None), "the value of the pair is not touched"


@nightly
def test_a_register_in_s3_of_moto() -> None:
    with moto() as url:
        holds(url, is_raced=False)  # moto compares and writes in two steps


@nightly
def test_a_register_in_postgresql() -> None:
    with postgresql() as (url, process):
        holds(url)
        gives_up(url, process)
        import psycopg

        with psycopg.connect(url.partition("#")[0]) as rival:
            rival.execute("SELECT 1 FROM malamute_register FOR UPDATE")
            with opened(url) as register:
                value, version = register.read()
                assert value is not None
                with pytest.raises(TryLater, match="timeout"):
                    register.swap(fresh(value), version)
        with psycopg.connect(url.partition("#")[0], autocommit=True) as operator:
            operator.execute("DELETE FROM malamute_register")
            with opened(url) as register:
                assert register.swap(fresh(value), None)
                assert not register.swap(fresh(value), version), "an emptied table counts from 1 again"


@nightly
def test_a_register_in_etcd() -> None:
    with etcd() as (port, process):
        url = f"etcd://127.0.0.1:{port}/malamute/pair"
        holds(url)
        gives_up(url, process.pid)
        holds(f"etcd://127.0.0.1:1,127.0.0.1:{port}/malamute/other")


@nightly
def test_a_register_in_etcd_with_users() -> None:
    from etcd3gw.client import Etcd3Client

    with etcd() as (port, _):
        url = f"etcd://root:se%2Fcret@127.0.0.1:{port}/pair"
        operator = Etcd3Client("127.0.0.1", port, api_path="/v3/")
        with opened(f"etcd://127.0.0.1:{port}/pair") as register:
            patient(register.read)
        for path, asked in [
            ("/auth/user/add", {"name": "root", "password": "se/cret"}),
            ("/auth/role/add", {"name": "root"}),
            ("/auth/user/grant", {"user": "root", "role": "root"}),
            ("/auth/enable", {}),
        ]:
            operator.post(operator.get_url(path), json=asked)
        holds(url)
        with opened(f"etcd://127.0.0.1:{port}/pair") as register, pytest.raises(TryLater, match="does not"):
            register.read()
        with opened(f"etcd://root:wrong@127.0.0.1:{port}/pair") as register, pytest.raises(TryLater) as said:
            register.read()
        assert "wrong" not in register.name
        assert "se/cret" not in str(said.value)


@nightly
def test_a_register_in_etcd_with_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*made, *names], check=True, capture_output=True)
    options = ("--cert-file", f"{certificate}", "--key-file", f"{key}", "--client-cert-auth")
    with etcd(*options, "--trusted-ca-file", f"{certificate}", scheme="https") as (port, _):
        place = f"etcds://127.0.0.1:{port}/pair"
        holds(f"{place}?ca={certificate}&cert={certificate}&key={key}")
        with opened(place) as register, pytest.raises(TryLater, match=r"(?i)certificate"):
            register.read()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("consul://host/key", "expected a URL that begins with one of file, s3"),
        ("pair.json", "expected a URL"),
        ("file:pair.json", "expected an absolute path"),
        ("file://host/pair.json", "expected an absolute path"),
        ("s3://bucket", "expected a bucket and a key"),
        ("s3://bucket/key?regoin=x", "regoin"),
        ("etcd:///key", "expected hosts and a key"),
        ("etcd://host:port/key", "expected hosts and a key"),
        ("etcd://host", "expected hosts and a key"),
        ("etcd://user:secret@host/key?ac=x", "expected hosts and a key"),
    ],
)
def test_a_wrong_url_is_refused_in_words_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_register(url)
    if isinstance(refused.value, NotInstalled):
        pytest.skip(refused.value.text)
    assert said in refused.value.text
    assert "secret" not in refused.value.text


class Faulty:
    """An engine that raises something of its own."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def get(self, key: str) -> None:
        raise self._fault

    def put(self, key: str, data: bytes, version: object) -> bool:
        raise self._fault

    def close(self) -> None: ...


@pytest.mark.parametrize("fault", [OSError("gone"), KeyError("x"), RuntimeError("lock"), ValueError()])
def test_any_exception_of_an_engine_is_an_unknown_outcome(fault: Exception) -> None:
    register = Register(Faulty(fault), "key", "name")
    acts: list[Callable[[], object]] = [register.read, lambda: register.swap(VALUE, None), register.prove]
    for act in acts:
        with pytest.raises(MalamuteError) as said:
            act()
        assert type(said.value) is TryLater
