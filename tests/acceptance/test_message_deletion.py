"""Messages are deleted from a stream while the broker is killed with SIGKILL, and read without it."""

from collections.abc import Callable
from threading import Thread

from rig_daemon import Daemon
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Gap
from malamute.journal.reader import StoreReader
from malamute.protocol.admin import StreamDeleteMessages, StreamQuery
from malamute.store.operations import Damage

MESSAGES, BATCH = 3_000, 50
BODY = b"personal data of a customer" * 40


def published(client: malamute.Client) -> None:
    with client.publisher("orders") as out:
        for number in range(MESSAGES):
            out.publish(f"customer.{number // BATCH % 2}", BODY)


def deleted_ranges(daemon: Daemon) -> int:
    """The ranges of deleted messages in the directory, as a process beside the broker reads it."""
    with StoreReader.open(daemon.config.storage.directory) as reader:
        start, count = 1, 0
        while found := reader.read("orders", start, bytes_max=1 << 22).found:
            count += sum(isinstance(item, Damage) and item.reason == "deleted" for item in found)
            start = found[-1].last + 1
        return count


def test_a_deletion_cut_short_by_sigkill_is_completed_at_the_next_start(
    new_daemon: Callable[..., Daemon],
) -> None:
    daemon = new_daemon().start()
    wanted = StreamDeleteMessages(stream="orders", subject="customer.1")

    def delete() -> None:
        # The client repeats the change at the broker that comes next, and is answered by it.
        with malamute.connect(daemon.url, timeout=PATIENCE) as operator:
            answers.append(operator.change(wanted).messages)

    answers: list[int] = []
    with malamute.connect(daemon.url, timeout=PATIENCE) as client:
        published(client)
        operator = Thread(target=delete)
        operator.start()
        eventually(lambda: deleted_ranges(daemon), "the deletion has begun")
        daemon.kill()
        daemon.start()
        operator.join(PATIENCE)
        assert len(answers) == 1
        assert client.query(StreamQuery(name="orders")).stored == MESSAGES // 2
        gaps: list[Gap] = []
        client.on_event = lambda event: gaps.append(event) if isinstance(event, Gap) else None
        with client.subscribe("orders", start=1) as subscription:
            subjects = {subscription.receive(PATIENCE).subject for _ in range(MESSAGES // 2)}
    assert subjects == {"customer.0"}
    assert sum(gap.last - gap.first + 1 for gap in gaps if gap.reason == "deleted") >= MESSAGES // 2 - BATCH
    daemon.stop()
    assert deleted_ranges(daemon) == MESSAGES // BATCH // 2
