"""Clients in processes of their own, for tests that stop and kill them."""

import os
import select
import signal
import subprocess
import sys

from rig_daemon import environment
from rig_waiting import PATIENCE

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
"""A subscriber that tells which runs of sequences it had, and each gap that it was told of."""

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


class Program:
    """A client process that speaks by lines."""

    def __init__(self, source: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
        )
        self._text = b""

    def line(self, patience: float = PATIENCE) -> list[str]:
        """The words of the next line; none at the end of the program."""
        assert self._process.stdout is not None
        while b"\n" not in self._text:
            assert select.select([self._process.stdout], [], [], patience)[0], "the program says nothing"
            piece = os.read(self._process.stdout.fileno(), 65_536)
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
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def wait_stopped(self) -> None:
        """Stop it with SIGSTOP, and return when it stands still."""
        self.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def close(self) -> None:
        """End it, if it has not ended, and free its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
