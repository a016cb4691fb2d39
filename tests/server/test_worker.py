"""The writer and the reader: what is done together, what fails alone, and what is reported of it."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from malamute.errors import InternalError, MalamuteError, StorageFull, StoreError, StoreLost
from malamute.journal.disk import DiskStore
from malamute.journal.memory import MemoryStore
from malamute.server.worker import Crashed, Faulty, ReadDone, ReaderThread, Results, Worker, WriterThread
from malamute.store.commit import Append, Written, done_anyway
from malamute.store.operations import (
    AppendChunk,
    Backup,
    Chunk,
    DeleteMessages,
    DeleteValue,
    FetchRecords,
    FindTime,
    ForgetIdentities,
    NoteRefused,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueState,
    ReadChunks,
    SetAttempts,
)
from malamute.store.tables import FEEDS, NUMBERS, SESSIONS

WAIT_SECONDS = 60


class Disk(MemoryStore):
    """A store that counts its transactions, and fails those with a certain session in them."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error or StorageFull("the disk is full")
        self.transactions: list[int] = []

    def write(self, operations):
        self.transactions.append(len(operations))
        if any(operation == BAD for operation in operations):
            raise self.error
        super().write(operations)


BAD = PutValue(SESSIONS, (b"bad", NUMBERS), b"")


def put(sequence: int) -> PutMessages:
    return PutMessages("mailbox", "bob", sequence, 1, "", ["a"], [b"x"])


def delete(sequence: int) -> DeleteMessages:
    return DeleteMessages("mailbox", "bob", [(sequence, sequence)])


def good(token: int) -> Append:
    return Append(token, [put(token)])


def kept(store: MemoryStore) -> list[int]:
    return [message.sequence for message in store.recover().queues["mailbox", "bob"].messages]


@pytest.fixture
def results() -> Iterator[Results]:
    results = Results()
    yield results
    results.close()


def work(worker: Worker, results: Results, *jobs) -> list:
    """Give jobs to a worker that has not begun, let it do them and end."""
    for job in jobs:
        worker.put(job)
    worker.finish()
    worker.start()
    worker.join(WAIT_SECONDS)
    assert not worker.is_alive()
    return results.pop()


def write(store: MemoryStore, results: Results, *appends: Append) -> list:
    return work(WriterThread("writer", store, results), results, *appends)


def test_appends_that_wait_are_one_transaction(results):
    store = Disk()
    assert write(store, results, good(1), good(2), good(3)) == [Written([1, 2, 3])]
    assert store.transactions == [3]
    assert kept(store) == [1, 2, 3]


def test_one_append_that_fails_fails_alone(results):
    store = Disk()
    bad = Append(2, [put(2), BAD])
    assert write(store, results, good(1), bad, good(3)) == [
        Written([1]),
        Written([2], store.error),
        Written([3]),
    ]
    assert kept(store) == [1, 3]


def test_an_append_that_fails_is_not_tried_twice(results):
    store = Disk()
    assert write(store, results, Append(1, [BAD])) == [Written([1], store.error)]
    assert store.transactions == [1, 0]


def test_what_gives_room_back_is_done_even_if_the_rest_fails(results):
    store = Disk()
    store.write([put(1), put(2), PutValue(SESSIONS, (b"old", NUMBERS), b"")])
    write(store, results, Append(1, [delete(1), DeleteValue(SESSIONS, (b"old",)), put(3), BAD]))
    assert kept(store) == [2]
    assert store.recover().table(SESSIONS) == {}


def test_what_delivery_no_longer_needs_is_forgotten_even_if_the_rest_fails(results):
    store = Disk()
    store.write([put(1), PutIdentity("mailbox", "bob", "id", 1, 5), PutValue(FEEDS, ("s", "f"), b"")])
    reported = SetAttempts("mailbox", "bob", 1, 2)
    write(
        store,
        results,
        Append(1, [reported, ForgetIdentities("mailbox", "bob", 5), DeleteValue(FEEDS, ("s", "f")), BAD]),
    )
    found = store.recover()
    assert found.queues == {("mailbox", "bob"): QueueState(2, 0, [*put(1).messages()], {1: 2})}
    assert found.table(FEEDS) == {}


def test_what_is_bound_to_the_rest_is_not_done_without_it(results):
    store = Disk()
    store.write([put(1), put(2)])
    bound = delete(2)
    write(store, results, Append(1, [delete(1), bound, BAD], [bound]))
    assert kept(store) == [2]
    assert done_anyway(Append(1, [delete(1), bound], [bound])) == [delete(1)]


def test_a_fault_of_the_disk_is_reported_like_a_full_one(results):
    store = Disk(StoreError("input/output error"))
    assert write(store, results, Append(1, [BAD])) == [Written([1], store.error)]


def test_a_fault_of_ours_fails_the_append_that_met_it_and_no_other(results):
    store = Disk(AssertionError("a stream went backwards"))
    found = write(store, results, good(1), Append(2, [delete(1), BAD]), good(3))
    # All together, and that one alone.
    assert found.count(Faulty("writing", store.error)) == 2
    assert [(w.tokens, type(w.error)) for w in found if isinstance(w, Written)] == [
        ([1], type(None)),
        ([2], InternalError),
        ([3], type(None)),
    ]
    assert kept(store) == [3]


def test_an_append_with_a_fault_is_not_stored_but_gives_room_back(results):
    store = Disk()
    store.write([put(1)])
    fault = InternalError("an iteration was given up")
    written = write(store, results, good(2), Append(3, [put(3), delete(1)], fault=fault), good(4))
    assert written == [Written([2]), Written([3], fault), Written([4])]
    assert kept(store) == [2, 4]


def append(sequence: int) -> AppendChunk:
    return AppendChunk("s", Chunk(sequence, 1, sequence, b"payload"), 100)


def refused(store: MemoryStore) -> list[NoteRefused]:
    return [*store.recover().refused.get("s", ())]


def test_what_of_a_stream_was_refused_is_noted_with_what_comes_next(results):
    store = Disk()
    bad = [Append(sequence, [append(sequence), BAD]) for sequence in (2, 3)]
    write(store, results, Append(1, [append(1)]), *bad, Append(4, [append(4)]))
    assert refused(store) == [NoteRefused("s", 2, 3)]
    assert [chunk.first for chunk in store.read("s", 1, bytes_max=1000).found] == [1, 4]


def test_another_stream_has_nothing_to_do_with_it(results):
    store = Disk()
    write(store, results, Append(1, [append(1)]), Append(2, [append(2), BAD]))
    elsewhere = AppendChunk("other", Chunk(1, 1, 1, b"payload"), 100)
    write(store, results, Append(3, [elsewhere]))
    assert refused(store) == []


def test_what_no_thread_survives_is_handed_on(results):
    store = Disk(SystemExit())
    assert write(store, results, good(1), Append(2, [BAD])) == [Crashed(store.error)]


def test_a_store_that_is_lost_ends_the_worker(results):
    store = Disk(StoreLost("it cannot be opened again"))
    assert write(store, results, good(1), Append(2, [BAD])) == [Crashed(store.error)]


@pytest.mark.parametrize("error", [StoreError("input/output error"), AssertionError("a fault")])
def test_a_read_that_fails_is_an_answer_and_the_reader_continues(results, error):
    class Unreadable(MemoryStore):
        def find_time(self, stream, time_ns):
            raise error

    first, second = FindTime("s", 1, 1), ReadChunks("s", 1, 100)
    found = work(ReaderThread("reader", Unreadable(), results), results, first, second)
    if isinstance(error, AssertionError):
        assert found.pop(0) == Faulty("reading (FindTime)", error)
    assert [f.question for f in found] == [first, second]
    assert isinstance(found[0].result, MalamuteError)
    assert found[1].result.found == ()


def test_what_was_given_before_the_end_is_done(results):
    store = Disk()
    writer = WriterThread("writer", store, results)
    writer.start()
    for token in range(1, 50):
        writer.put(good(token))
    writer.finish()
    writer.join(WAIT_SECONDS)
    done = [token for written in results.pop() for token in written.tokens]
    assert done == list(range(1, 50)) == kept(store)


def test_a_read_brings_what_the_store_has(results):
    store = Disk()
    store.write([AppendChunk("s", Chunk(1, 2, 1, b"p"), 9)])
    read = ReadChunks("s", 1, 100)
    [found] = work(ReaderThread("reader", store, results), results, read)
    assert found == ReadDone(read, store.read("s", 1, bytes_max=100))


def test_any_number_of_results_wake_the_loop_once(results):
    results.put(Written([1]))
    results.put(Written([2]))
    assert readable(results)
    results.clear()
    assert not readable(results)
    assert results.pop() == [Written([1]), Written([2])]
    assert results.pop() == []
    results.put(Written([3]))
    assert readable(results)


def test_waking_a_loop_that_has_ended_is_nothing():
    results = Results()
    results.close()
    results.wake()


def readable(results: Results) -> bool:
    return bool(select.select([results.fileno()], [], [], 0)[0])


def test_the_reader_fetches_records(results):
    store = Disk()
    store.write([put(1), put(2)])
    question = FetchRecords("mailbox", "bob", (2, 3))
    (found,) = work(ReaderThread("reader", store, results), results, question)
    assert found == ReadDone(question, {2: b"x"})


def test_a_backup_that_the_system_refuses_is_no_fault_of_the_brokers_own(results, tmp_path):
    """Links that lead to themselves, or a directory that nobody may read."""
    (tmp_path / "round").symlink_to("round")
    store = DiskStore.open(tmp_path / "data", size=1 << 20, preallocate=False)
    backup = Backup(str(tmp_path / "round" / "monday"), str(tmp_path))
    ((question, found),) = work(ReaderThread("copier", store, results), results, backup)
    assert question == backup
    assert isinstance(found, StoreError)
    store.close()


def test_what_is_in_a_log_only_is_taken_over_though_nothing_more_comes(tmp_path, results):
    store = DiskStore.open(tmp_path, size=32 << 20, has_log=True)
    taken = threading.Event()
    take_over = store.take_over
    store.take_over = lambda: (take_over(), taken.set())
    store.recover()
    worker = WriterThread("writer", store, results)
    worker.start()
    worker.put(Append(1, [put(1)]))
    assert taken.wait(WAIT_SECONDS)
    assert results.pop() == [Written([1])]
    assert store.take_over_at is None
    worker.finish()
    worker.join(WAIT_SECONDS)
    store.close()


def test_a_take_over_that_fails_is_reported_and_tried_again(results):
    class Behind(Disk):
        tries = 0

        @property
        def take_over_at(self):
            return 0.0 if self.transactions and self.tries < 2 else None

        def take_over(self):
            self.tries += 1
            if self.tries == 1:
                raise self.error

    store = Behind()
    assert write(store, results, good(1)) == [Written([1]), Written((), store.error)]
    assert store.tries == 2
