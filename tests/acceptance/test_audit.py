"""What an operator changed is recorded, though the broker is killed as soon as it has confirmed that."""

import json
from collections.abc import Callable

from rig_daemon import Daemon
from rig_waiting import PATIENCE

import malamute
from malamute.protocol.admin import StreamRetain
from malamute.protocol.names import AUDIT

KILLS = 3


def test_a_change_is_recorded_though_the_broker_is_killed_right_after_its_confirmation(
    new_daemon: Callable[..., Daemon], connect_to: Callable[..., malamute.Client]
) -> None:
    daemon = new_daemon().start()
    client = connect_to(daemon.url)
    for count in range(1, KILLS + 1):
        client.change(StreamRetain(stream="s", count=count))
        daemon.kill()
        daemon.start()
    with client.subscribe(AUDIT, start="first") as records:
        found = [records.receive(timeout=PATIENCE) for _ in range(KILLS)]
    assert [json.loads(record.body)["after"]["count"] for record in found] == [*range(1, KILLS + 1)]
    assert [json.loads(record.body)["before"]["count"] for record in found] == [*range(KILLS)]
    assert {record.headers["outcome"] for record in found} == {"done"}
