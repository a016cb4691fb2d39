"""A program with tasks, as `taskiq worker taskiq_program:broker` runs it."""

import os
import time
from pathlib import Path

from malamute.integrations.taskiq import MalamuteBroker, MalamuteResultBackend

URL = os.environ.get("TASKIQ_TEST_URL", "tcp://127.0.0.1:9999")

broker = MalamuteBroker(URL, credit=2).with_result_backend(MalamuteResultBackend(URL))


@broker.task("hold")
def hold(file: str) -> int:
    """Wait while the file is there, after a line with the process in another one."""
    with Path(f"{file}.begun").open("a") as begun:
        begun.write(f"{os.getpid()}\n")
    while Path(file).exists():
        time.sleep(0.02)
    return os.getpid()
