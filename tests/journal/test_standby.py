"""A standby and its catch-up beside the real store: equal numbers are equal values, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
import record_store
from click.testing import CliRunner
from depth import DEPTH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from pair_stores import FIRST, PAIR, SECOND, make_member, record_in, set_record, values
from stores import MIB, append, firsts, put
from test_store_model import LoggedStores
from test_write_ahead import Failing
from test_write_sets import FAULT

from malamute.cli.root import cli
from malamute.errors import StorageFull, StoreCorrupt, StoreError
from malamute.journal import catch_up as catching
from malamute.journal.catch_up import PIECE_BYTES, Compared, catch_up, compare
from malamute.journal.disk import DiskStore
from malamute.journal.diverged import diverged_files, diverged_messages
from malamute.journal.format import CHUNK, key
from malamute.journal.pair_record import PairRecord, parting
from malamute.journal.standby import DIVERGED, Standby
from malamute.journal.tail import LogRecord, Tail
from malamute.journal.write_ahead import FILE
from malamute.journal.write_set import WriteSet, decode, encode
from malamute.store.operations import DeleteMessages, DeleteStream, DeleteStreamMessages

TMPFS = "/dev/shm" if Path("/dev/shm").is_dir() else None


def run(standby, source, *, messages=None):
    """A catch-up, or its first messages; return how many there were."""
    asking, answer, count = catch_up(standby), None, 0
    with suppress(StopIteration):
        while messages is None or count < messages:
            request = asking.send(answer)
            assert len(request) <= PIECE_BYTES
            answer = source.answer(request)
            assert len(answer) <= PIECE_BYTES
            count += 1
        asking.close()
    return count


def sent(items):
    """The items, as they come over a link."""
    return [decode(encode(one)) if isinstance(one, WriteSet) else one for one in items]


def kill(store):
    store.take_over = lambda: None
    store.close()


def contents(store):
    status = store.status()
    streams = sorted(state._replace(identifier=0) for state in status.streams.values())
    return streams, dict(status.queues), status.sessions


class Pair:
    """Two directories: one has the primary, the other its standby."""

    def __init__(self, directory, size, *, bytes_max=1 << 26, **options):
        self.directories = [directory / "a", directory / "b"]
        self.size, self.bytes_max, self.timeline = size, bytes_max, 1
        self.options = {"has_log": True, **options}
        make_member(self.directories[0], size=size)
        self.store = self.standby = None

    def open(self):
        self.tail = Tail(bytes_max=self.bytes_max)
        self.store = DiskStore.open(
            self.directories[0],
            size=self.size,
            timeline=self.timeline,
            on_commit=self.tail.add,
            on_append=self.tail.append,
            **self.options,
        )
        self.source = self.store.catch_up_source(self.tail)
        return self.store

    def join(self):
        new = PairRecord(PAIR, SECOND)
        self.standby = Standby.open(self.directories[1], size=self.size, preallocate=False, joins=new)

    def reopen(self):
        if self.standby is not None:
            self.standby.close()
        self.standby = Standby.open(self.directories[1], size=self.size, preallocate=False)

    def follow(self, part=1.0):
        """Bring the standby up to a part of what it lacks, by the tail if that has it."""
        standby, timelines = self.standby, self.store.pair_record.timelines
        part_at = parting(standby.record.timelines, timelines)
        items = self.tail.since(standby.lsn)
        if not standby.record.whole or items is None or (part_at is not None and part_at <= standby.lsn):
            run(standby, self.source)
            items = self.tail.since(standby.lsn)
        standby.follow(timelines)
        standby.take(sent(items[: round(part * len(items))]))
        assert standby.synced <= self.store.lsn
        if standby.lsn == self.store._store.lsn:
            assert values(standby._environment) == values(self.store._store.environment)
        return standby

    def take_over(self):
        """The standby goes on; the directory of the primary, which was killed, is its standby now."""
        kill(self.store)
        self.standby.close()
        self.directories.reverse()
        self.timeline += 1
        self.open()
        self.standby = None
        self.reopen()

    def close(self):
        for each in (self.store, self.standby):
            if each is not None:
                each.close()


class PairedStores(LoggedStores):
    """A primary in any life, a standby that follows now and then, and takeovers."""

    def opened(self):
        if not hasattr(self, "pair"):
            self.directory.cleanup()
            self.directory = tempfile.TemporaryDirectory(dir=TMPFS)
            options = {"streams_budget": self.budget, "preallocate": True}
            self.pair = Pair(Path(self.directory.name), MIB, bytes_max=60_000, **options)
            self.expected, self.takes_over = {0: None}, False
            self.pair.open()
            self.pair.join()
        elif self.takes_over:
            self.pair.follow()
            assert self.pair.standby.synced == self.pair.store.lsn
            self.pair.take_over()
        else:
            kill(self.pair.store)
            self.pair.open()
        self.takes_over = False
        disk = self.pair.store
        disk._store.log_floor = 500
        return disk

    def end(self):
        pass

    def write(self, operations):
        super().write(operations)
        self.expected[self.disk.lsn] = contents(self.memory)

    def warmed(self, found, store):
        return super().warmed(found, store)._replace(lsn=0)

    @rule(records=st.none() | st.integers(0, 20_000))
    def take_over(self, records):
        self.takes_over = True
        self.restart(records)

    @rule(part=st.floats(0, 1))
    def follow(self, part):
        self.pair.follow(part)

    @rule()
    def follow_all(self):
        self.pair.follow()
        assert self.pair.standby.synced == self.disk.lsn

    @rule()
    def kill_the_standby(self):
        self.pair.reopen()

    @rule(count=st.integers(0, 8), is_all_new=st.booleans())
    def break_a_catch_up_off(self, count, is_all_new):
        if is_all_new:
            self.pair.standby.begin_catch_up()
        run(self.pair.standby, self.pair.source, messages=count)
        self.pair.source.close()
        self.pair.reopen()

    @rule()
    def look_at_a_takeover_now(self):
        """All that the standby has synced is there if the primary dies now, and nothing of a half."""
        standby = self.pair.standby
        synced, whole = standby.synced, standby.record.whole
        standby.close()
        self.pair.standby = None
        copy = Path(self.directory.name) / "copy"
        shutil.copytree(self.pair.directories[1], copy)
        self.pair.reopen()
        try:
            if not whole:
                with pytest.raises(StoreError, match="half a copy"):
                    DiskStore.open(copy, size=MIB, timeline=99)
                return
            with closing(DiskStore.open(copy, size=MIB, streams_budget=self.budget, timeline=99)) as store:
                expected = self.expected[max(n for n in self.expected if n <= synced)]
                if expected is not None:
                    store.recover()
                    assert contents(store) == expected
        finally:
            shutil.rmtree(copy)

    @rule()
    def fail(self):
        store = self.disk._store
        environment, store.environment = store.environment, Failing(store.environment, FAULT)
        with suppress(StorageFull, StoreError):
            self.disk.write([DeleteStream("none")])
        store.environment = environment
        self.disk.take_over()

    def teardown(self):
        if hasattr(self, "pair"):
            self.pair.follow()
            self.pair.close()
            self.directory.cleanup()
            self.steps.undo()


PairedStores.TestCase.settings = settings(max_examples=5 * DEPTH, stateful_step_count=40, deadline=None)
TestPairedStores = PairedStores.TestCase


@pytest.fixture
def pair():
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        pair = Pair(Path(directory), 32 * MIB)
        pair.open().recover()
        pair.join()
        yield pair
        pair.close()


def test_a_record_is_synced_by_the_standby_and_there_after_its_takeover(pair):
    pair.follow()
    pair.store.write([append(1)])
    pair.store.write([put(1)])
    pair.follow()
    assert pair.standby.lsn == pair.store._store.lsn == pair.store.lsn - 2
    assert pair.standby.synced == pair.store.lsn
    pair.take_over()
    assert firsts(pair.store) == [1]
    assert pair.store.recover().queues


def test_what_a_takeover_of_the_log_brings_needs_no_record(pair):
    pair.follow()
    pair.store.write([append(1)])
    pair.store.take_over()
    pair.store.write([append(2)])
    items = pair.tail.since(pair.standby.lsn)
    assert [type(one) for one in items] == [LogRecord, WriteSet, LogRecord]
    pair.standby.take(items)
    assert len(pair.standby.records_since(0)) == len(pair.standby.records_since(pair.store.lsn)) == 1
    before = pair.standby.path / FILE
    assert before.read_bytes().count(b"MWAL") == 1


def test_a_hole_and_another_store_are_refused_and_a_repeated_item_has_no_effect(pair):
    pair.follow()
    for n in (1, 2, 3):
        pair.store.write([append(n)])
    one, two, three = pair.tail.since(pair.standby.lsn)
    with pytest.raises(StoreError, match="expected"):
        pair.standby.take([two])
    pair.standby.take([one])
    with pytest.raises(StoreError, match="expected"):
        pair.standby.take([three])
    with pytest.raises(StoreCorrupt, match="damaged"):
        pair.standby.take([two._replace(data=two.data[:-1] + b"x")])
    pair.standby.take([one, one, two])
    assert pair.standby.synced == two.lsn
    pair.follow()
    pair.store.take_over()
    with pytest.raises(StoreError, match="another store"):
        pair.standby.take([pair.tail.since(pair.standby.lsn)[-1]._replace(store=bytes(16))])
    pair.follow()


def test_a_failed_sync_of_the_log_is_not_tried_again_until_it_is_opened_anew(pair, monkeypatch):
    pair.follow()
    pair.store.write([append(1)])
    before = pair.standby.synced

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("malamute.journal.write_ahead.os.fdatasync", fail)
        with pytest.raises(StoreError, match="cannot write"):
            pair.follow()
    assert pair.standby.synced == before
    with pytest.raises(StoreError, match="opened again"):
        pair.follow()
    pair.reopen()
    pair.follow()
    assert pair.standby.synced == pair.store.lsn


def test_what_the_log_of_a_former_primary_has_alone_is_put_aside(pair):
    pair.follow()
    pair.store.write([append(1)])
    pair.follow()
    pair.store.write([append(2)])
    pair.take_over()
    pair.store.recover()
    assert firsts(pair.store) == [1]
    assert pair.standby.synced == pair.store.lsn, "its second record has the number of the first write set"
    pair.follow()
    (aside,) = (pair.standby.path / DIVERGED).iterdir()
    (record,) = decode(aside.read_bytes()).changes.values()
    assert b"p" in record
    pair.store.write([append(2, payload=b"another")])
    pair.follow()
    pair.take_over()
    assert firsts(pair.store) == [1, 2]


def test_what_a_former_primary_has_alone_is_put_aside_before_it_is_overwritten(pair):
    chunk, message = record_store.chunk, record_store.put
    for n in range(1, 50):
        pair.store.write([chunk("weather", n, "shared")])
    pair.store.write([message("mailbox", "bob", 1)])
    pair.store.take_over()
    pair.follow()
    for n in range(50, 60):
        pair.store.write([chunk("weather", n, "alone", sizes=[20_000]), chunk("new", n, "alone")])
    pair.store.write([message("mailbox", "bob", 2)])
    pair.store.take_over()
    pair.store.write([chunk("weather", 60, "in the log")])
    pair.take_over()
    pair.store.recover()
    pair.store.write([chunk("weather", 50, "another")])
    pair.follow()
    directory = pair.standby.path
    (file,) = diverged_files(directory)
    assert file[1:3] == (1, pair.store.pair_record.timelines[-1][1])
    found = [*diverged_messages(directory, file.name)]
    assert sorted((m.kind, m.name, m.sequence, m.subject) for m in found) == [
        ("mailbox", "bob", 2, "subject"),
        *(("stream", "new", n, "alone") for n in range(50, 60)),
        *(("stream", "weather", n, "alone") for n in range(50, 60)),
        ("stream", "weather", 60, "in the log"),
    ]
    assert {
        (m.sender, len(m.body), *m.headers) for m in found if m.name == "weather" and m.sequence < 60
    } == {("alice", 20_000, "n")}
    assert pair.standby.record == pair.store.pair_record._replace(replica=FIRST)
    listed = CliRunner().invoke(cli, ["pair", "diverged", "--data", str(directory), "--json"])
    assert [row["name"] for row in json.loads(listed.stdout)] == [file.name]
    printed = CliRunner().invoke(cli, ["pair", "diverged", file.name, "--data", str(directory)])
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [(m["name"], m["sequence"]) for m in lines] == [(m.name, m.sequence) for m in found]
    with pytest.raises(StoreError, match="no file"):
        next(diverged_messages(directory, "../data.mdb"))
    (directory / DIVERGED / file.name).unlink()
    none = CliRunner().invoke(cli, ["pair", "diverged", "--data", str(directory)])
    assert (none.stdout, none.stderr) == ("", "no messages were put aside\n")


def test_a_catch_up_that_is_broken_off_at_any_message_is_never_started(pair, monkeypatch):
    monkeypatch.setattr(catching, "KEYS_MAX", 20)
    monkeypatch.setattr(catching, "STEP_BYTES", 3000)
    for n in range(1, 40):
        pair.store.write([append(n, payload=bytes(500)), put(n)])
    pair.store.take_over()
    total = run(pair.standby, pair.source)
    assert total > 8
    for count in range(total):
        pair.standby.begin_catch_up()
        standby = pair.directories[1]
        changes = {
            place: None for place in values(pair.standby._environment) if place[0] > 1 and place[-1] % 2
        }
        pair.standby.change(changes)
        run(pair.standby, pair.source, messages=count)
        pair.standby.close()
        pair.standby = None
        is_whole = record_in(standby).whole
        if not is_whole:
            with pytest.raises(StoreError, match="half a copy"):
                DiskStore.open(standby, size=pair.size, timeline=2)
        assert not is_whole or count > total - 2
        if count % 2:
            kill(pair.store)
            pair.open().recover()
        pair.reopen()
    pair.follow()


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_catch_up_ends_while_the_primary_goes_on(pair, monkeypatch, is_slow):
    """Each message meets a write, of more than the tail keeps for some messages if it `is_slow`."""
    monkeypatch.setattr(catching, "KEYS_MAX", 40)
    pair.tail._bytes_max = 150_000
    pair.store.write([append(n, payload=bytes(5000)) for n in range(1, 200)])
    asking, answer, held, n = catch_up(pair.standby), None, 0, 200
    with suppress(StopIteration):
        while True:
            answer = pair.source.answer(asking.send(answer))
            for _ in range(3 if is_slow else 1):
                if pair.tail.wait(0):
                    pair.store.write([append(n, payload=bytes(5000))])
                    pair.store.take_over()
                    n += 1
                else:
                    held += 1
    assert bool(held) == is_slow
    assert pair.tail.wait(0)
    pair.follow()


def test_a_directory_of_another_broker_is_refused_unchanged(pair, tmp_path):
    with closing(DiskStore.open(tmp_path / "other", size=MIB)) as other:
        other.recover()
        other.write([append(1)])
    set_record(tmp_path / "other", PairRecord(PAIR, SECOND, whole=False))
    with closing(Standby.open(tmp_path / "other", size=MIB)) as standby:
        before = values(standby._environment)
        with pytest.raises(StoreError, match="of broker"):
            run(standby, pair.source)
        assert values(standby._environment) == before


@pytest.mark.parametrize("request_", [b"\xff", b"\x91\x63", b"\x93\x01\x01", b"\xc0", b"\x92\x01\xc0"])
def test_a_request_that_is_none_is_refused(pair, request_):
    with pytest.raises(StoreError, match="invalid request"):
        pair.source.answer(request_)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_large_value_comes_in_pieces_and_deleted_messages_leave_the_log(pair, is_reopened):
    secret = b"to be deleted "
    pair.store.write([append(1, payload=secret * 300_000)])
    pair.store.write([append(2, payload=secret)])
    pair.follow()
    log = pair.standby.path / FILE
    assert secret in log.read_bytes()
    if is_reopened:
        pair.reopen()
    pair.store.write(
        [DeleteStreamMessages("s", ((1, 2),)), put(1), DeleteMessages("mailbox", "q", ((1, 1),))]
    )
    pair.follow()
    assert not log.exists() or secret not in log.read_bytes()


def test_a_damaged_copy_catches_up_by_itself(pair):
    for n in range(1, 9):
        pair.store.write([append(n)])
    pair.follow()
    pair.standby.close()
    pair.standby = None
    path = pair.directories[1] / FILE
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        pair.reopen()
        assert pair.standby.record.whole, "it may be the primary's own directory"
    assert path.read_bytes() == data
    with pytest.raises(StoreError, match="damaged values"):
        pair.standby.take(pair.tail.since(pair.standby.lsn))
    with pytest.raises(StoreError, match="half a copy"):
        pair.standby.follow(pair.store.pair_record.timelines)
    pair.reopen()
    assert not pair.standby.record.whole
    pair.follow()
    assert pair.standby.record.whole


def compared(pair, *, meanwhile=lambda: None):
    asking, answer = compare(pair.standby), None
    while True:
        try:
            answer = pair.source.answer(asking.send(answer))
        except StopIteration as end:
            return end.value
        meanwhile()


def test_a_comparison_names_what_differs_at_one_moment_while_both_go_on(pair):
    pair.store.write([append(n, payload=bytes(900)) for n in range(1, 60)])
    pair.follow()
    numbers = iter(range(100, 10_000))

    def write_and_follow():
        pair.store.write([append(next(numbers)), put(1)])
        pair.store.take_over()
        pair.follow(0.5)

    assert compared(pair, meanwhile=write_and_follow)[1:] == ((), 0)
    pair.follow()
    places = [place for place in values(pair.standby._environment) if place[0] == CHUNK]
    with pair.standby._environment.begin(write=True) as transaction:
        transaction.delete(places[3])
        transaction.put(places[5], b"another")
        transaction.put(key(CHUNK, 77, 1), b"more")
    expected = {places[3], places[5], key(CHUNK, 77, 1)}
    found = compared(pair, meanwhile=write_and_follow)
    assert (set(found.differing), found.undecided) == (expected, 0)
    pair.standby.begin_catch_up()
    with pytest.raises(StoreError, match="half a copy"):
        compared(pair)


def test_a_key_that_never_stands_still_is_told_as_undecided(pair):
    pair.store.write([append(1)])
    pair.follow()
    numbers = iter(range(2, 10_000))

    def write():
        pair.store.write([append(next(numbers))])
        pair.store.take_over()

    write()
    found = compared(pair, meanwhile=write)
    assert found.differing == ()
    assert found.undecided > 0
    assert isinstance(found, Compared)


def test_a_number_has_one_content_even_if_both_log_and_lmdb_refuse_a_group(pair, monkeypatch):
    pair.follow()
    store = pair.store._store
    environment = store.environment

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("malamute.journal.write_ahead.os.fdatasync", fail)
        patch.setattr(store, "environment", Failing(environment, FAULT))
        with pytest.raises(StorageFull):
            pair.store.write([append(1, payload=b"refused")])
    (handed,) = pair.tail.since(pair.standby.lsn)
    pair.follow()
    assert pair.standby.synced == handed.lsn
    pair.store.write([append(1, payload=b"stored")])
    assert pair.store.lsn > handed.lsn
    pair.follow()
    pair.take_over()
    assert [chunk.payload for chunk in pair.store.read("s", 1, bytes_max=MIB).found] == [b"stored"]
