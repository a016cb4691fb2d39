"""Keys of buckets on the command line."""

from __future__ import annotations

import json

from cli_commands import Run

import malamute


def test_a_key_is_put_printed_and_deleted(run: Run, client: malamute.Client) -> None:
    done = json.loads(run("bucket", "put", "b", "k", "one", "--expect", "0", "--json").stdout)
    bucket = client.bucket("b")
    found = bucket.get("k")
    assert found is not None
    assert (found.value, found.ttl, done["revision"]) == (b"one", None, found.revision)
    assert run("bucket", "get", "b", "k").stdout == "one"
    assert run("bucket", "put", "b", "k", "two", "--expect", "0", exit_code=1).stderr.startswith(
        "error 412: "
    )
    revision = str(found.revision)
    run("bucket", "put", "b", "k", "two", "--ttl", "1h", "--expect", revision)
    shown = json.loads(run("bucket", "get", "b", "k", "--json").stdout)
    assert (shown["body"], 3_000 < shown["ttl"] <= 3_600) == ("two", True)
    dry = json.loads(run("bucket", "delete", "b", "k", "--dry-run", "--json").stdout)
    assert dry["deleted"]
    assert bucket.get("k") is not None
    run("bucket", "delete", "b", "k", "--yes")
    assert bucket.get("k") is None
    assert run("bucket", "get", "b", "k", exit_code=1).stderr.startswith("error 404: ")
    assert run("bucket", "delete", "b", "k", "--yes", exit_code=1).stderr.startswith("error 404: ")


def test_buckets_are_listed_and_keys_watched(run: Run, client: malamute.Client) -> None:
    assert run("bucket", "list").stderr == "no buckets\n"
    bucket = client.bucket("b")
    bucket.put("k", "one")
    [row] = json.loads(run("bucket", "list", "--json").stdout)
    assert (row["name"], row["persistence"], row["keys"], row["watches"]) == ("b", "durable", 1, 0)
    assert row["bytes"] > 600
    assert run("bucket", "watch", "b", "k", "x", "--count", "2").stdout == "k: one\nx: not there\n"
    lines = run("bucket", "watch", "b", "k", "x", "--count", "2", "--json").stdout.splitlines()
    assert [json.loads(line).get("body") for line in lines] == ["one", None]
