"""Clients in processes of their own, for tests that stop and kill them."""

import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from rig_process import FORKS, end, fork
from rig_waiting import PATIENCE, eventually

WORKER = """
import sys
import malamute

url, service, address = sys.argv[1:]
with malamute.connect(url, address=address, timeout=60) as client, client.work(service) as requests:
    print("ready", flush=True)
    for request in requests:
        print("got", request.body.decode(), request.attempts, flush=True)
        if sys.stdin.readline() != "reply\\n":
            break
        request.reply(b"from " + address.encode())
"""
"""A worker that tells of each request, and answers it when told to."""

REQUESTER = """
import sys
import malamute

url, service, address = sys.argv[1:]
with malamute.connect(url, address=address, timeout=60) as client:
    replies = client.request(service, "do", b"this", assurance="stored", timeout=60)
    client.flush()
    print("stored", flush=True)
    sys.stdin.readline()
"""
"""A requester whose request is stored, and who then says no more."""

SUBSCRIBER = """
import sys
import malamute

url, stream, last = sys.argv[1:]
with malamute.connect(url, timeout=60) as client:
    client.on_event = lambda event: isinstance(event, malamute.client.events.Gap) and print(
        "gap", event.first, event.last, event.reason, flush=True)
    with client.subscribe(stream, credit=-1, credit_bytes=-1) as messages:
        print("ready", flush=True)
        first, end = 1, 0
        for batch in messages.batches():
            for message in batch:
                if message.sequence != end + 1:
                    if end:
                        print("had", first, end, flush=True)
                    first = message.sequence
                end = message.sequence
            if end >= int(last):
                break
        print("had", first, end, flush=True)
"""
"""A subscriber that reports which runs of sequences it had, and each gap that it was notified of."""

RECIPIENT = """
import sys
import malamute

url, address = sys.argv[1:]
with malamute.connect(url, address=address, timeout=60) as client:
    for mail in client.mailbox(auto_ack=False):
        print("got", mail.body.decode(), mail.attempts, flush=True)
        if sys.stdin.readline() == "ack\\n":
            mail.ack()
            client.flush()
            print("acked", flush=True)
"""
"""A recipient that tells of each mail, and acknowledges it when told to."""


def play(source: str, arguments: tuple[str, ...], heard: Connection, said: Connection) -> None:
    """Run a program as `python -c` does, with pipes for its input and output."""
    sys.argv = ["-c", *arguments]
    sys.stdin = open(heard.fileno(), closefd=False)  # noqa: SIM115  # they are open to the end
    sys.stdout = open(said.fileno(), "w", closefd=False)  # noqa: SIM115
    exec(source, {"__name__": "__main__"})


class Program:
    """A client process that speaks by lines."""

    def __init__(self, source: str, *arguments: str) -> None:
        heard, self._input = FORKS.Pipe(duplex=False)
        self._output, said = FORKS.Pipe(duplex=False)
        with heard, said:
            self._process = fork(play, source, arguments, heard, said)
        self._text = b""

    def line(self, patience: float = PATIENCE) -> list[str]:
        """The words of the next line; none at the end of the program."""
        while b"\n" not in self._text:
            assert self._output.poll(patience), "the program says nothing"
            piece = os.read(self._output.fileno(), 65_536)
            if not piece:
                return []
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().split()

    def lines(self) -> list[list[str]]:
        """All lines up to its end."""
        lines = []
        while line := self.line():
            lines.append(line)
        return lines

    def tell(self, line: str) -> None:
        """Write a line to it."""
        os.write(self._input.fileno(), line.encode() + b"\n")

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()

    def wait_stopped(self) -> None:
        """Stop it with SIGSTOP, and return when every thread of it stands still."""
        self.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        eventually(
            lambda: all(
                (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
                for thread in threads.iterdir()
            ),
            "it stands still",
        )

    def close(self) -> None:
        """End it, if it has not ended, and free its pipes."""
        end(self._process)
        self._input.close()
        self._output.close()
