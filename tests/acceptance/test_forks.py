"""Processes that tests fork are cheap to start: a preload that fails is no error, and only slow."""

import gc
import sys
from multiprocessing.connection import Connection

from rig_process import FORKS, end, fork
from rig_waiting import PATIENCE


def tell(said: Connection, needed: set[str]) -> None:
    """Say what a broker would have to import, and whether a collection would look at what is there."""
    said.send((needed - set(sys.modules), gc.get_freeze_count() > 0))


def test_a_fork_has_everything_imported_and_out_of_the_collectors_sight():
    heard, said = FORKS.Pipe(duplex=False)
    with heard, said:
        process = fork(
            tell, said, {"malamute.server.daemon", "malamute.cli.broker", "malamute.client.sync.client"}
        )
        assert heard.poll(PATIENCE)
        assert heard.recv() == (set(), True)
    end(process)
