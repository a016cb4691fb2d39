"""A queue that is much larger than the memory for it is delivered whole, over a restart and a kill."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
from rig_daemon import Daemon, small
from rig_waiting import PATIENCE, eventually

import malamute

COUNT = 400
MEMORY_BYTES = 32 * 1024


def body(number: int) -> bytes:
    return b"%d:" % number + b"x" * 1024


@pytest.fixture
def deep(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker that may keep no more than some thirty of these messages in memory."""
    return new_daemon(replace(small(), overrides={"queues_memory_bytes": MEMORY_BYTES})).start()


def held_bytes(client: malamute.Client) -> int:
    """What the broker has in memory of queued messages."""
    status = client.query("status")
    held: int = status["queue_bytes"] - status["paged_out_bytes"]
    return held


def test_a_deep_mailbox_is_delivered_whole_and_in_order_over_restarts(
    deep: Daemon, closing: ExitStack
) -> None:
    alice = closing.enter_context(malamute.connect(deep.url, address="alice", timeout=PATIENCE))
    with alice.sender("bob") as out:
        for number in range(COUNT):
            out.publish("deep", body(number))
    assert 0 < held_bytes(alice) <= MEMORY_BYTES
    deep.restart()
    assert 0 < held_bytes(alice) <= MEMORY_BYTES
    [first, last] = [alice.query("messages", kind="mailbox", name="bob", after=n, limit=1) for n in (0, 399)]
    assert [first[0]["body"], last[0]["body"]] == [body(0), body(COUNT - 1)]

    bob = closing.enter_context(malamute.connect(deep.url, address="bob", timeout=PATIENCE))
    got = [bob.receive(timeout=PATIENCE).body for _ in range(COUNT // 2)]
    assert got == [body(number) for number in range(COUNT // 2)]
    deep.kill()
    deep.start()
    # Which acknowledgements were on the disk by then is not known; all else comes, the first of them again.
    rest = {bob.receive(timeout=PATIENCE).body for _ in range(COUNT // 2)}
    while body(COUNT - 1) not in rest:
        rest.add(bob.receive(timeout=PATIENCE).body)
    assert rest | set(got) == {body(number) for number in range(COUNT)}


def test_a_deep_service_is_worked_off_after_a_restart(deep: Daemon, closing: ExitStack) -> None:
    """WP31: each request is answered, and while nobody works the memory of the broker holds few of them."""
    alice = closing.enter_context(malamute.connect(deep.url, address="alice", timeout=PATIENCE))
    replies = [alice.request("deep", "job", body(number), timeout=PATIENCE) for number in range(COUNT)]
    assert alice.query("services")[0]["messages"] == COUNT
    eventually(lambda: held_bytes(alice) <= MEMORY_BYTES, "what is on the disk leaves memory")
    deep.restart()
    assert 0 < held_bytes(alice) <= MEMORY_BYTES
    worker = closing.enter_context(malamute.connect(deep.url, address="worker", timeout=PATIENCE))
    with worker.work("deep") as requests:
        for number in range(COUNT):
            request = requests.receive(timeout=PATIENCE)
            assert request.body == body(number)
            request.reply(b"%d" % number)
    assert [next(iter(reply)).body for reply in replies] == [b"%d" % number for number in range(COUNT)]
    assert alice.query("services")[0]["messages"] == 0
