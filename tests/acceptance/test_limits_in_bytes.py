"""What clients can make a broker hold, on default settings: the peak of its anonymous memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rig_daemon import Daemon
from rig_peer import Peer, peer
from rig_waiting import PATIENCE

from malamute.config import Config
from malamute.errors import TooLarge
from malamute.protocol.codec import decode
from malamute.protocol.limits import ITEMS_MAX
from malamute.protocol.messages import Error

FRAME_BYTES = 60 * 1024 * 1024


@pytest.fixture
def broker(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker as users have it."""
    return new_daemon(Config()).start()


def peak_until_answered(broker: Daemon, client: Peer) -> tuple[float, Error]:
    """The anonymous memory of the broker at its peak until it refuses what was sent."""
    most = broker.anonymous_mib
    for _ in range(int(PATIENCE * 100)):
        most = max(most, broker.anonymous_mib)
        if client.socket.poll(10):
            message = decode(client.socket.recv_multipart())
            if isinstance(message, Error):
                return most, message
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    "item", [b"\x90", b"\x80", b"\xa2ab", b"\x81\xa1a\x01"], ids=["lists", "maps", "texts", "ones"]
)
def test_a_large_frame_of_small_values_is_refused_before_they_are_made(broker: Daemon, item: bytes) -> None:
    """64 MiB of empty lists took 4.6 GB."""
    row = b"\xdd" + ITEMS_MAX.to_bytes(4, "big") + item * ITEMS_MAX
    rows = FRAME_BYTES // len(row)
    with peer(broker.url) as client:
        client.open()
        before = broker.anonymous_mib
        client.send_frames(b"\xdc" + rows.to_bytes(2, "big") + row * rows)
        most, error = peak_until_answered(broker, client)
    assert error.code == TooLarge.code
    # The frame itself, once as libzmq has it and once as bytes.
    assert most - before < 2 * FRAME_BYTES / 1024**2 + 30
