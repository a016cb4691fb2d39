"""Engines of registers as they are: etcd, PostgreSQL, and object stores that compare or do not."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from free_ports import free_port


class _Bucket(BaseHTTPRequestHandler):
    """The part of S3 that a register uses; `compares` is whether conditions are looked at."""

    protocol_version = "HTTP/1.1"
    compares = True
    lock = threading.Lock()
    objects: dict[str, bytes] = {}

    def do_GET(self) -> None:
        self._answer(*self._get())

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            self._answer(self._put(data), b"", data)

    def _get(self) -> tuple[int, bytes, bytes]:
        with self.lock:
            data = self.objects.get(self.path)
        return (404, b"", b"") if data is None else (200, data, data)

    def _put(self, data: bytes) -> int:
        found = self.objects.get(self.path)
        wanted, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        is_refused = (none == "*" and found is not None) or (
            wanted and (found is None or wanted != _tag(found))
        )
        if self.compares and is_refused:
            return 412
        self.objects[self.path] = data
        return 200

    def _answer(self, status: int, body: bytes, tagged: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", _tag(tagged))
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 04:00:00 GMT")
        self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextmanager
def bucket(*, compares: bool) -> Iterator[str]:
    """Serve a bucket; yield the URL of a register in it."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    handler = type("Handler", (_Bucket,), {"compares": compares, "objects": {}, "lock": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield s3_url(server.server_address[1], "bucket")
        finally:
            server.shutdown()
            thread.join()


def s3_url(port: int, name: str) -> str:
    options = "region=us-east-1&access_key_id=a&secret_access_key=b"
    return f"s3://{name}/pairs/one.json?endpoint=http://127.0.0.1:{port}&{options}"


@contextmanager
def moto() -> Iterator[str]:
    """Serve S3 by moto; yield the URL of a register in it."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
        urllib.request.urlopen(request).close()
        yield s3_url(port, "bucket")
    finally:
        server.stop()


@contextmanager
def postgresql() -> Iterator[tuple[str, int]]:
    """Run a server of Debian's PostgreSQL as an ordinary user; yield a URL, and the process."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed")
    programs = found[-1].parent
    with tempfile.TemporaryDirectory() as place:
        data, port = Path(place) / "data", free_port()
        run = {"capture_output": True, "check": True, "cwd": place}
        if os.getuid() == 0:
            try:
                ordinary = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("there is no user for PostgreSQL")
            os.chown(place, ordinary.pw_uid, ordinary.pw_gid)
            run |= {"user": ordinary.pw_uid, "group": ordinary.pw_gid, "extra_groups": []}
        subprocess.run([programs / "initdb", "-A", "trust", "-U", "pair", "-N", data], **run)
        options = f"-p {port} -h 127.0.0.1 -k {place} -c fsync=off"
        start = [programs / "pg_ctl", "-D", data, "-w", "-l", Path(place) / "log", "-o", options, "start"]
        subprocess.run(start, **{**run, "capture_output": False, "stdout": subprocess.DEVNULL})
        try:
            process = int((data / "postmaster.pid").read_text().splitlines()[0])
            yield f"postgresql://pair@127.0.0.1:{port}/postgres#one", process
        finally:
            subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], **run)


def find_etcd() -> str:
    """Return the program, which CI puts into the path as it does promtool."""
    program = os.environ.get("MALAMUTE_ETCD") or shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed: MALAMUTE_ETCD=… names the program of Debian's etcd-server")
    return program


@contextmanager
def etcd(*options: str, scheme: str = "http") -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a server of etcd; yield its port and process."""
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    program = find_etcd()
    port, peer = free_port(), free_port()
    with tempfile.TemporaryDirectory() as place:
        own = f"{scheme}://127.0.0.1:{port}"
        peers = f"http://127.0.0.1:{peer}"
        process = subprocess.Popen(
            [
                *(program, "--data-dir", f"{place}/data", "--listen-client-urls", own),
                *("--advertise-client-urls", own, "--listen-peer-urls", peers, "--logger", "zap"),
                *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", *options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield port, process
        finally:
            process.kill()
            process.wait()
