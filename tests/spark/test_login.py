"""Spark's jobs at a broker that asks who connects, and that nothing they print has a secret."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import zmq
from click.testing import CliRunner
from history_files import Sent, write
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import malamute
from malamute.access import AccessRule, Account, Accounts
from malamute.cli.root import cli
from malamute.client.contexts import CREDENTIALS, Context, Contexts, file_of, save
from malamute.client.link.credentials import given_by
from malamute.config import AccessConfig, ListenConfig, UserRules
from malamute.config.accounts import hash_password, save_accounts
from malamute.errors import AccessRefused, InvalidValue
from malamute.server.daemon import open_broker
from malamute.spark.export import export
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import open_history
from malamute.spark.layout import manifest_path
from malamute.spark.login import Login
from malamute.spark.options import SourceOptions
from malamute.spark.replay import ReplaySettings, ReplayWriter
from malamute.spark.source import MalamuteSource
from malamute.spark.verify import verify
from malamute.spark.writing import Target
from malamute.testing import small_config

SECRET = "open-sesame"
ANN, EVE = ({"user": user, "password": SECRET} for user in ("ann", "eve"))
KEY = zmq.curve_keypair()[0].decode()
RULES = ("create,publish,subscribe stream/#", "receive mailbox/#", "view */#", "view broker/#")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a broker that ann and eve may use; eve does not see all rows of one stream."""
    accounts = tmp_path_factory.mktemp("login") / "accounts.toml"
    save_accounts(Accounts([Account(user, hash_password(SECRET)) for user in ("ann", "eve")]), accounts)
    config = small_config()
    config = replace(
        config,
        storage=replace(config.storage, directory=accounts.parent / "data"),
        listen=ListenConfig(endpoints=("plain+tcp://127.0.0.1:*",)),
        access=AccessConfig(
            accounts=str(accounts),
            rules=tuple(map(AccessRule.parse, RULES)),
            user=(
                UserRules("eve", rules=(AccessRule.parse("deny subscribe stream/wards where ward = '3'"),)),
            ),
        ),
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = open_broker(config, context)
    thread = threading.Thread(target=loop.run)
    thread.start()
    (found,) = loop.endpoints
    with malamute.connect(found, user="ann", password=SECRET) as client:
        client.publish("s", "a", b"x", assurance="stored")
        for ward in ("3", "7", "3", "7", "3"):
            client.publish("wards", ward, b"x", {"ward": ward}, assurance="stored")
    yield found
    loop.stop()
    thread.join()
    context.term()


@pytest.mark.parametrize(
    ("environ", "given", "found"),
    [
        ({}, {}, {}),
        ({"MALAMUTE_USER": "a", "MALAMUTE_PASSWORD": "b"}, {}, {"user": "a", "password": "b"}),
        ({"MALAMUTE_USER": "a", "MALAMUTE_PASSWORD": "b"}, {"user": "c"}, {"user": "c", "password": "b"}),
        ({"MALAMUTE_USER": "a", "MALAMUTE_PASSWORD": "b"}, {"token": "t"}, {"token": "t"}),
        ({"MALAMUTE_USER": "a", "MALAMUTE_CURVE": "k"}, {}, {"user": "a"}),
        ({"MALAMUTE_TOKEN": " t\n"}, {}, {"token": "t"}),
        ({"MALAMUTE_SERVER_KEY": KEY}, {}, {}),
        ({"MALAMUTE_SERVER_KEY": KEY}, {"curve": "k"}, {"curve": "k", "server_key": KEY}),
        (
            {"MALAMUTE_CURVE": "k", "MALAMUTE_SERVER_KEY": KEY},
            {"user": "a"},
            {"user": "a", "server_key": KEY},
        ),
    ],
)
def test_a_task_gets_what_the_program_would_go_by(
    environ: dict[str, str], given: dict[str, str], found: dict[str, str]
) -> None:
    assert given_by(environ, given) == found


def test_a_server_key_is_read_where_its_file_is(tmp_path: Path) -> None:
    path = tmp_path / "broker.key"
    path.write_text(f'curve\n    public-key = "{KEY}"\n')
    assert given_by({}, {"token": "t", "server_key": str(path)})["server_key"] == KEY
    with pytest.raises(InvalidValue, match="key cannot be read"):
        given_by({}, {"token": "t", "server_key": str(tmp_path / "none")})


def test_no_text_of_it_has_the_secret_and_a_task_does() -> None:
    login = Login.of({**ANN, "stream": "s"}, {})
    options = SourceOptions.parse({"url": "tcp://127.0.0.1:9", "stream": "s", **ANN})
    schema = StructType([StructField("subject", StringType())])
    target = Target.parse({"url": "tcp://127.0.0.1:9", "stream": "s", **ANN}, schema, overwrite=False)
    for one in (login, options, target, ReplaySettings("tcp://127.0.0.1:9", login=login)):
        assert SECRET not in f"{one!r} {one}"
    for one in (login, options.login, target.login):
        assert pickle.loads(pickle.dumps(one)).credentials == ANN


@pytest.mark.parametrize("name", CREDENTIALS)
def test_who_connects_is_asked_of_brokers_alone(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"option '{name}' without a broker: .* url") as caught:
        SourceOptions.parse({"path": "/exports", name: SECRET})
    assert SECRET not in caught.value.text


def test_a_context_says_where_the_broker_is_and_who_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    lab = Context("tcp://lab:1", **ANN)
    save(file_of(os.environ), Contexts("", {"lab": lab, "nowhere": Context(address="ann")}))
    options = SourceOptions.parse({"context": "lab", "stream": "s"})
    assert (options.url, options.login.credentials) == ("tcp://lab:1", ANN)
    schema = StructType([StructField("subject", StringType())])
    target = Target.parse({"context": "lab", "stream": "s"}, schema, overwrite=False)
    assert (target.url, target.login.credentials) == ("tcp://lab:1", ANN)
    other = SourceOptions.parse({"context": "lab", "token": "t", "stream": "s"})
    assert other.login.credentials == {"token": "t"}
    for given, words in (
        ({"context": "lab", "url": "tcp://x:1"}, "'url' beside a context"),
        ({"context": "nobody"}, "there is no context 'nobody'"),
        ({"context": "nowhere"}, "has no URL"),
    ):
        with pytest.raises(malamute.errors.MalamuteError, match=words):
            SourceOptions.parse(given)


def test_history_is_read_from_a_broker_by_who_may(url: str) -> None:
    with open_history(url=url, login=Login.of(ANN)) as history:
        assert [*history.streams()] == ["s"] or "s" in history.streams()
    with pytest.raises(AccessRefused), open_history(url=url, login=Login.of({**ANN, "password": "guess"})):
        pass


def test_history_from_a_broker_has_the_rows_that_its_user_may_see_and_says_so(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    place = ExportLocation(str(tmp_path))
    with open_history(url=url, login=Login.of(EVE)) as history:
        done = export(history, "wards", place)
        assert (done.messages, done.first, done.last, done.limited) == (2, 2, 4, True)
        assert [(row.compared, row.fault) for row in verify(place, "wards", history)] == [(2, "")]
    with open_history(url=url, login=Login.of(ANN)) as history:
        assert [row.fault for row in verify(place, "wards", history)] == [""]
        assert not export(history, "wards", ExportLocation(str(tmp_path / "all"))).limited
    spark.dataSource.register(MalamuteSource)
    frame = spark.read.format("malamute").options(url=url, stream="wards", **EVE).load()
    assert [row.subject for row in frame.select("subject").collect()] == ["7", "7"]
    # An export that says nothing of rules, as those of earlier versions, is to be whole.
    manifest = Path(f"{tmp_path}{manifest_path('wards')}")
    value = json.loads(manifest.read_text())
    del value["crc32"], value["files"][0]["limited"], value["files"][0]["checksums"]
    manifest.write_text(json.dumps(value))
    assert [row.fault for row in verify(place, "wards")] == ["2 messages where 3 belong, from 2 to 4"]


def test_journal_export_says_that_it_is_limited(url: str, tmp_path: Path) -> None:
    for user, words in (("eve", "limited: stream wards\n"), ("ann", "")):
        arguments = ["journal", "export", "--stream", "wards", "--url", url, "--to", str(tmp_path / user)]
        environ = {"MALAMUTE_USER": user, "MALAMUTE_PASSWORD": SECRET}
        done = CliRunner().invoke(cli, arguments, env=environ)
        assert (done.exit_code, done.stderr) == (0, words)


def test_a_frame_is_published_by_who_may(url: str) -> None:
    schema = StructType([StructField("subject", StringType())])
    target = Target.parse({"url": url, "stream": "written", **ANN}, schema, overwrite=False)
    assert target.publish(iter([pa.RecordBatch.from_pydict({"subject": ["a", "b"]})])) == 2


def test_a_replay_is_written_by_who_may(url: str) -> None:
    with ReplayWriter(url, "replayed", "r", 0.0, Login.of(ANN)) as writer:
        assert writer.position == 0
    with (
        pytest.raises(AccessRefused),
        ReplayWriter(url, "replayed", "r", 0.0, Login.of({"user": "eve", "password": "guess"})),
    ):
        pass


def test_spark_reads_as_who_the_options_say_and_its_plan_has_no_secret(spark: SparkSession, url: str) -> None:
    spark.dataSource.register(MalamuteSource)
    frame = spark.read.format("malamute").options(url=url, stream="s", **ANN).load()
    assert [row.subject for row in frame.select("subject").collect()] == ["a"]
    assert SECRET not in str(frame._jdf.queryExecution())


@pytest.fixture
def context(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a context of ann."""
    for name in [name for name in os.environ if name.startswith("MALAMUTE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save(file_of(os.environ), Contexts("", {"safe": Context(url=url, user="ann", password=SECRET)}))
    return "safe"


def test_an_export_goes_by_a_context(context: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for arguments in (
        ("export", "--context", context, "--stream", "s", "--to", out),
        ("export", "verify", "--context", context, "--from", out),
    ):
        result = CliRunner().invoke(cli, ["journal", *arguments])
        assert result.exit_code == 0, result.output
        assert SECRET not in result.output


def test_an_export_goes_by_the_environment_where_a_url_is_given(
    context: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALAMUTE_USER", "ann")
    monkeypatch.setenv("MALAMUTE_PASSWORD", SECRET)
    arguments = ["journal", "export", "--url", url, "--stream", "s", "--to"]
    result = CliRunner().invoke(cli, [*arguments, str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("MALAMUTE_PASSWORD", "guess")
    result = CliRunner().invoke(cli, [*arguments, str(tmp_path / "other")])
    assert result.exit_code == 1
    assert "error 401: connection to tcp://" in result.output


def test_a_replay_goes_by_a_context(context: str, tmp_path: Path) -> None:
    write(tmp_path / "h", "one", [Sent(1, "a", b"x")])
    arguments = ["spark", "replay", str(tmp_path / "h"), "--dry-run", "--name", "r"]
    result = CliRunner().invoke(cli, [*arguments, "--context", context, "--json"])
    assert result.exit_code == 0, result.output
    assert '"messages":1' in result.output.replace(" ", "")
    assert SECRET not in result.output
