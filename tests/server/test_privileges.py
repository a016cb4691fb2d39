"""A broker that root has started runs as another user, or not at all."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import malamute
from malamute.errors import ConfigError, MalamuteError
from malamute.protocol.admin import BrokerReload, StatusQuery
from malamute.server import privileges as module
from malamute.server.privileges import ProcessUser
from malamute.server.process import BrokerProcess

NOBODY = "nobody"
SMALL = (
    "--set",
    "storage.size=16MiB",
    "--set",
    "limits.message_bytes=1MiB",
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others may read, as /var/lib is."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user: not tested")
    directory = Path(tempfile.mkdtemp(prefix="malamute-user-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def status(pid: int) -> dict[str, list[str]]:
    """The lines of the system on a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def test_a_broker_of_root_is_another_user_for_good_in_all_its_threads(place: Path) -> None:
    socket = place / "socket"
    user = pwd.getpwnam(NOBODY)
    options = ("--user", NOBODY, "--listen", f"ipc://{socket}", *SMALL)
    with BrokerProcess(place, *options) as broker, malamute.connect(broker.url) as client:
        client.publish("s", "a", b"x", assurance="stored")
        for task in Path(f"/proc/{broker.pid}/task").iterdir():
            found = status(int(task.name))
            assert found["Uid"] == [str(user.pw_uid)] * 4
            assert found["Gid"] == [str(user.pw_gid)] * 4
            assert found["Groups"] == [str(user.pw_gid)]
            assert found["CapEff"] == found["CapPrm"] == ["0000000000000000"]
        made = [place / "data", *(place / "data").iterdir(), socket]
        assert {(path.stat().st_uid, path.stat().st_mode & 0o077) for path in made} == {(user.pw_uid, 0)}
        assert stat.S_ISSOCK(socket.stat().st_mode)
        client.change(BrokerReload())
        assert client.query(StatusQuery()).pid == broker.pid
    # The files that it has left behind can be opened again.
    with BrokerProcess(place, *options[:2], *SMALL) as broker, malamute.connect(broker.url) as client:
        assert client.subscribe("s", start="first").receive(timeout=30).body == b"x"


def test_data_that_belongs_to_another_user_is_refused(place: Path) -> None:
    with BrokerProcess(place, *SMALL):
        pass
    with pytest.raises(MalamuteError, match=r"is not for the user 'nobody' .* chown -R nobody .*error 700"):
        BrokerProcess(place, "--user", NOBODY, *SMALL).__enter__()
    assert (place / "data" / "data.mdb").stat().st_uid == 0


def test_a_place_that_the_user_cannot_read_is_refused(place: Path) -> None:
    place.chmod(0o700)
    with pytest.raises(
        MalamuteError, match=r"is not for the user 'nobody' to read: .* chmod o\+rx .*error 700"
    ):
        BrokerProcess(place, "--user", NOBODY, *SMALL).__enter__()


def test_who_is_not_root_cannot_become_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root can start a broker that runs as another user"):
        ProcessUser.find(NOBODY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no-such-user", "there is no user 'no-such-user'"),
        ("nobody:no-such-group", "there is no group 'no-such-group'"),
        ("root", "other than root's"),
        ("nobody:root", "other than root's"),
        ("0:1", "other than root's"),
        ("4242424", "no group is known of that number: expected UID:GROUP"),
    ],
)
def test_a_user_that_is_none_or_root_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProcessUser.find(text)
    assert words in caught.value.text


def test_a_user_is_given_by_name_or_number_and_has_one_group_where_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    user = pwd.getpwnam(NOBODY)
    assert ProcessUser.find(NOBODY) == (NOBODY, user.pw_uid, (user.pw_gid,))
    assert ProcessUser.find("4242424:77") == ("4242424", 4242424, (77,))
    assert ProcessUser.find(f"{NOBODY}:77") == (NOBODY, user.pw_uid, (77,))
