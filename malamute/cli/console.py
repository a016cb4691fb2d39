"""The console beside a broker: a gateway in a process of its own, which ends with the broker."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from malamute.cli.error_output import BadInput
from malamute.errors import ConfigError, NotInstalled

CONSOLE = "127.0.0.1:8080"

END_SECONDS = 5.0
"""Time for a gateway to end before it is killed."""


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT. Raises `BadInput`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadInput(f"invalid address {address!r}: expected HOST:PORT, such as {CONSOLE}")
    return host.strip("[]"), int(port)


def url_of(endpoints: Sequence[str]) -> str:
    """Return the URL of a broker for a program of this machine: an open endpoint if there is one."""
    endpoint = next((endpoint for endpoint in endpoints if "+" not in endpoint), endpoints[0])
    return endpoint.rpartition("+")[2].replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def check_console(address: str) -> None:
    """Raise an error unless a gateway can listen on an address.

    Raises:
        NotInstalled: The libraries of the gateway are missing.
        BadInput: The address is invalid.
        ConfigError: The address is in use, or not of this machine.
    """
    for module in ("uvicorn", "starlette", "jinja2"):
        if find_spec(module) is None:
            raise NotInstalled.module(module)
    host, port = host_and_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"the console cannot listen on {address}: {words}",
            hint="end the program that listens there, or take another address: --console 127.0.0.1:8081",
        ) from None


class ConsoleProcess:
    """The gateway of a broker; `start` and `end` do nothing without an address."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        if address is not None:
            check_console(address)

    @property
    def url(self) -> str:
        """Return the address of the console; empty without one."""
        return f"http://{self._address}/" if self._address is not None else ""

    def start(self, broker: str) -> None:
        """Start the gateway for the broker at a URL."""
        if self._address is None:
            return
        command = [sys.executable, "-m", "malamute", "gateway", "run", "--with-parent", "--broker", broker]
        # Control-C on a terminal is for the broker, which ends the gateway.
        self._process = subprocess.Popen(
            [*command, "--listen", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ask the gateway to end, without waiting for it."""
        if self._process is not None:
            self._process.terminate()

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the end of the gateway; after `END_SECONDS` it is killed."""
        if self._process is None:
            return
        with self._process as process:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
