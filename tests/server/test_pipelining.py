"""A client that sends more commands than libzmq takes in, while the broker is busy with something else."""

from __future__ import annotations

import pytest
import zmq

from malamute.protocol.codec import encode
from malamute.protocol.messages import Hello, Ping, Welcome
from malamute.server.loop import socket_options
from malamute.server.stalls import CAN_TELL
from malamute.server.transport import Transport

PEER = b"\x01" * 16
PATIENCE_MS = 60_000
COMMANDS, QUEUE = 2_000, 100
HEARTBEAT_MS = 20
SILENCE_MS = 20 * HEARTBEAT_MS
"""How long the broker is busy. Too short a time would only hide a fault."""


@pytest.mark.skipif(not CAN_TELL, reason="elsewhere libzmq asks for heartbeats over TCP, too")
def test_it_is_not_cut_off_because_its_heartbeat_waits_behind_its_commands(context):
    """The answer to a heartbeat would come behind all that libzmq does not read."""
    options = socket_options(
        heartbeat_ms=HEARTBEAT_MS,
        heartbeat_timeout_ms=HEARTBEAT_MS,
        send_queue=QUEUE,
        receive_queue=QUEUE,
        frame_bytes_max=1 << 20,
    )
    transport = Transport(context, options)
    client = context.socket(zmq.DEALER)
    client.routing_id, client.sndhwm = PEER, 0
    ends = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.connect(transport.bind("tcp://127.0.0.1:*"))
    client.send_multipart(encode(Hello([2], "")))
    while not client.poll(0):
        assert transport.socket.poll(PATIENCE_MS)
        transport.watch(0.0, [transport.guard.monitor])
        for peer, _ in transport.receive():
            transport.send(peer, Welcome(2, b"s", b"b", False, "", {}))
            assert client.poll(PATIENCE_MS)
    for _ in range(COMMANDS):
        client.send_multipart(encode(Ping()))
    assert not ends.poll(SILENCE_MS)
    came = 0
    while came < COMMANDS:
        assert transport.socket.poll(PATIENCE_MS)
        came += len(list(transport.receive()))
    assert not ends.poll(0)
    client.disable_monitor()
    ends.close(0)
    transport.close(0)
