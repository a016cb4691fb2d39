"""What is measured with whom: the works, and the peers with their servers.

A peer names its workloads as `module:function`, so that this table needs none of the clients. A work that a
peer has no line for is one that it cannot do, or that would be another one's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lab.peers.server import HOST, ServerCommand, find_program, version_of
from malamute.bench.machine import package_version

INSTALL_CLIENTS = "pip install 'malamute[peers]'"


class WorkKind(NamedTuple):
    """A work: what it is, in how many parts of the messages, and whether latency is what it is about."""

    what: str
    divisor: int
    by_latency: bool = False
    many: bool = False


BATCHED, UNCONFIRMED, CONFIRMED, WAITED = "batched", "unconfirmed", "confirmed", "waited"
REQUEST, STORED_REQUEST, FANOUT = "request", "stored-request", "fanout"
CELERY_SEND, CELERY_WORK, TASKIQ_WORK = "celery-send", "celery-work", "taskiq-work"
UNSTORED_SEND, UNSTORED_WORK = "celery-send-unstored", "celery-work-unstored"

WORKS: dict[str, WorkKind] = {
    BATCHED: WorkKind("1→1, batched", 1),
    UNCONFIRMED: WorkKind("1→1, one message a command, unconfirmed", 2),
    CONFIRMED: WorkKind("publish one a command, confirmed, many under way", 4),
    WAITED: WorkKind("publish one, wait for its confirmation", 200, by_latency=True),
    REQUEST: WorkKind("request → reply, one at a time, not stored", 100, by_latency=True),
    STORED_REQUEST: WorkKind("request → reply, one at a time, stored first", 200, by_latency=True),
    FANOUT: WorkKind("1→N, deliveries", 10, many=True),
    CELERY_SEND: WorkKind("Celery, apply_async one at a time", 400, by_latency=True),
    CELERY_WORK: WorkKind("Celery, tasks done: prefork, acks late", 100),
    UNSTORED_SEND: WorkKind("Celery, apply_async one at a time, not stored", 400, by_latency=True),
    UNSTORED_WORK: WorkKind("Celery, tasks done, not stored", 100),
    TASKIQ_WORK: WorkKind("taskiq, tasks done", 40),
}
"""By the word of `--work`."""


class Part(NamedTuple):
    """The two sides of a work. Without `receiver` the sender is alone, until all is confirmed.

    Who can do it only slowly does it for a part of the messages.
    """

    sender: str
    receiver: str = ""
    divisor: int = 1


class Peer(NamedTuple):
    """Somebody to measure. `needs` are modules of the extra, and `programs` what a server consists of."""

    name: str
    serve: Callable[[Path, Sequence[int]], ServerCommand]
    durability: str
    parts: Mapping[str, Part]
    needs: Sequence[str] = ()
    programs: Mapping[str, str] = {}
    """With the package of Debian that has each; the server is the first."""
    says_version: Sequence[str] = ()
    """What is run to see which version the server is."""
    clients: Sequence[str] = ()
    """Packages of its client."""

    @property
    def missing(self) -> list[str]:
        """What is not installed, and how it would be."""
        lines = [
            f"no {program}: apt-get install {package}"
            for program, package in self.programs.items()
            if find_program(program) is None
        ]
        return lines + [f"no {module}: {INSTALL_CLIENTS}" for module in self.needs if not find_spec(module)]

    @property
    def about(self) -> str:
        """Its versions and its durability."""
        words = [f"{client} {package_version(client)}" for client in self.clients]
        if self.says_version:
            words.insert(0, f"{next(iter(self.programs))} {version_of(self.says_version)}")
        return f"{', '.join(words)}; {self.durability}"


# How the servers are started


def _own(directory: Path, ports: Sequence[int]) -> ServerCommand:
    where = ("--data", str(directory / "data"), "--listen", f"tcp://{HOST}:{ports[0]}")
    return ServerCommand([sys.executable, "-m", "malamute", "broker", "run", *where])


def _nats(directory: Path, ports: Sequence[int]) -> ServerCommand:
    return ServerCommand(["nats-server", "--addr", HOST, "--port", str(ports[0])])


def _jetstream(directory: Path, ports: Sequence[int]) -> ServerCommand:
    plain = _nats(directory, ports)
    return ServerCommand([*plain.words, "--jetstream", "--store_dir", str(directory)])


def _redis(*stored: str) -> Callable[[Path, Sequence[int]], ServerCommand]:
    def serve(directory: Path, ports: Sequence[int]) -> ServerCommand:
        options = ("--bind", HOST, "--port", str(ports[0]), "--dir", str(directory), "--save", "")
        return ServerCommand(["redis-server", *options, *stored])

    return serve


def _rabbitmq(directory: Path, ports: Sequence[int]) -> ServerCommand:
    """With the daemon that finds Erlang's nodes as our own child, as it would otherwise outlive all."""
    amqp, distribution, epmd, _ = ports
    configuration = directory / "rabbitmq.conf"
    configuration.write_text(f"listeners.tcp.1 = {HOST}:{amqp}\ndisk_free_limit.absolute = 50MB\n")
    nothing = directory / "nothing"
    nothing.touch()
    server = find_program("rabbitmq-server") or "rabbitmq-server"
    return ServerCommand(
        ["sh", "-c", f'epmd -port {epmd} -address {HOST} & exec "$0"', server],
        {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_CONF_ENV_FILE": str(nothing),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(nothing),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
        },
    )


def _mosquitto(directory: Path, ports: Sequence[int]) -> ServerCommand:
    configuration = directory / "mosquitto.conf"
    lines = [
        f"listener {ports[0]} {HOST}",
        "allow_anonymous true",
        "persistence true",
        f"persistence_location {directory}/",
        "max_queued_messages 0",
        "max_inflight_messages 0",
        "set_tcp_nodelay true",
        *(["user root"] if os.geteuid() == 0 else []),
    ]
    configuration.write_text("\n".join(lines) + "\n")
    return ServerCommand(["mosquitto", "-c", str(configuration)])


def _zeromq(kind: str, count: int) -> Callable[[Path, Sequence[int]], ServerCommand]:
    def serve(directory: Path, ports: Sequence[int]) -> ServerCommand:
        return ServerCommand([sys.executable, "-m", "lab.peers.zeromq", kind, *map(str, ports[:count])])

    return serve


def _floor(kind: str) -> Callable[[Path, Sequence[int]], ServerCommand]:
    def serve(directory: Path, ports: Sequence[int]) -> ServerCommand:
        return ServerCommand([sys.executable, "-m", "lab.peers.floor", kind, str(directory), str(ports[0])])

    return serve


# The table

OWN = Peer(
    "Malamute",
    _own,
    "journal, with an fsync before each confirmation; 3 headers a message",
    {
        BATCHED: Part("own:publish_batched", "own:subscribe"),
        UNCONFIRMED: Part("own:publish_unconfirmed", "own:subscribe"),
        CONFIRMED: Part("own:publish_confirmed"),
        WAITED: Part("own:publish_and_wait"),
        REQUEST: Part("own:ask", "own:answer"),
        STORED_REQUEST: Part("own:ask_stored", "own:answer"),
        FANOUT: Part("own:publish_batched", "own:subscribe"),
        CELERY_SEND: Part("frameworks:celery_send"),
        CELERY_WORK: Part("frameworks:celery_work"),
        UNSTORED_SEND: Part("frameworks:celery_send_unstored"),
        UNSTORED_WORK: Part("frameworks:celery_work_unstored"),
        TASKIQ_WORK: Part("frameworks:taskiq_work"),
    },
    clients=["malamute"],
)

REDIS_CELERY = {
    CELERY_SEND: Part("frameworks:celery_send_redis"),
    CELERY_WORK: Part("frameworks:celery_work_redis"),
    TASKIQ_WORK: Part("frameworks:taskiq_work_redis"),
}

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        OWN,
        Peer(
            "NATS",
            _nats,
            "nothing is stored",
            {
                BATCHED: Part("nats:publish", "nats:subscribe"),
                UNCONFIRMED: Part("nats:publish", "nats:subscribe"),
                REQUEST: Part("nats:ask", "nats:answer"),
                FANOUT: Part("nats:publish", "nats:subscribe"),
            },
            ["nats"],
            {"nats-server": "nats-server"},
            ["nats-server", "--version"],
            ["nats-py"],
        ),
        Peer(
            "JetStream",
            _jetstream,
            "in files, with an fsync every two minutes: an acknowledgement does not wait for one",
            {
                BATCHED: Part("nats:publish_async", "nats:subscribe_stream"),
                CONFIRMED: Part("nats:publish_async"),
                WAITED: Part("nats:publish_and_wait"),
                STORED_REQUEST: Part("nats:ask_stored", "nats:answer_stored"),
                FANOUT: Part("nats:publish_async", "nats:subscribe_stream"),
            },
            ["nats"],
            {"nats-server": "nats-server"},
            ["nats-server", "--version"],
            ["nats-py"],
        ),
        Peer(
            "Redis Streams",
            _redis("--appendonly", "yes", "--appendfsync", "always"),
            "append-only file, with an fsync before each answer",
            {
                BATCHED: Part("redis:publish_batched", "redis:subscribe"),
                CONFIRMED: Part("redis:publish_and_wait", divisor=20),
                WAITED: Part("redis:publish_and_wait"),
                STORED_REQUEST: Part("redis:ask", "redis:answer"),
                FANOUT: Part("redis:publish_batched", "redis:subscribe"),
                **REDIS_CELERY,
            },
            ["redis", "taskiq_redis"],
            {"redis-server": "redis-server"},
            ["redis-server", "--version"],
            ["redis", "hiredis"],
        ),
        Peer(
            "Redis without AOF",
            _redis("--appendonly", "no"),
            "nothing is stored",
            {
                **REDIS_CELERY,
                UNSTORED_SEND: Part("frameworks:celery_send_redis"),
                UNSTORED_WORK: Part("frameworks:celery_work_redis"),
            },
            ["redis", "taskiq_redis"],
            {"redis-server": "redis-server"},
            ["redis-server", "--version"],
            ["redis", "taskiq-redis"],
        ),
        Peer(
            "RabbitMQ",
            _rabbitmq,
            "durable queues and persistent messages, with an fsync before a confirmation",
            {
                BATCHED: Part("rabbitmq:publish_batched", "rabbitmq:subscribe"),
                UNCONFIRMED: Part("rabbitmq:publish_unconfirmed", "rabbitmq:subscribe"),
                CONFIRMED: Part("rabbitmq:publish_confirmed"),
                WAITED: Part("rabbitmq:publish_and_wait"),
                REQUEST: Part("rabbitmq:ask", "rabbitmq:answer"),
                STORED_REQUEST: Part("rabbitmq:ask_stored", "rabbitmq:answer_stored"),
                FANOUT: Part("rabbitmq:publish_batched", "rabbitmq:subscribe"),
                CELERY_SEND: Part("frameworks:celery_send_amqp"),
                CELERY_WORK: Part("frameworks:celery_work_amqp"),
            },
            ["pika"],
            {"rabbitmq-server": "rabbitmq-server", "epmd": "erlang-base"},
            ["readlink", "-f", find_program("rabbitmq-server") or "."],  # rabbitmqctl leaves a daemon behind
            ["pika"],
        ),
        Peer(
            "Mosquitto",
            _mosquitto,
            "in memory, and saved every half an hour: an acknowledgement does not wait for that",
            {
                BATCHED: Part("mosquitto:publish", "mosquitto:subscribe"),
                UNCONFIRMED: Part("mosquitto:publish", "mosquitto:subscribe"),
                CONFIRMED: Part("mosquitto:publish_confirmed"),
                WAITED: Part("mosquitto:publish_and_wait"),
                REQUEST: Part("mosquitto:ask", "mosquitto:answer"),
                FANOUT: Part("mosquitto:publish", "mosquitto:subscribe"),
            },
            ["paho"],
            {"mosquitto": "mosquitto"},
            ["mosquitto", "-h"],
            ["paho-mqtt"],
        ),
        Peer(
            "zmq.proxy",
            _zeromq("proxy", 4),
            "nothing is stored; messages without limit in memory",
            {
                BATCHED: Part("zeromq:publish", "zeromq:subscribe"),
                UNCONFIRMED: Part("zeromq:publish", "zeromq:subscribe"),
                REQUEST: Part("zeromq:ask", "zeromq:answer"),
                FANOUT: Part("zeromq:publish", "zeromq:subscribe"),
            },
            clients=["pyzmq"],
        ),
        Peer(
            "bare ROUTER",
            _zeromq("relay", 1),
            "nothing is stored",
            {REQUEST: Part("own:relay_ask", "own:relay_answer")},
            clients=["pyzmq"],
        ),
        Peer(
            "floor",
            _floor("relay"),
            "a ROUTER with msgpack; nothing is stored",
            {REQUEST: Part("floor:ask", "floor:answer")},
            clients=["pyzmq"],
        ),
        *(
            Peer(
                f"floor, {name}",
                _floor(kind),
                f"the same with a writer thread, {durability}; of a request the reply is not stored",
                {
                    WAITED: Part("floor:publish_and_wait"),
                    STORED_REQUEST: Part("floor:ask", "floor:answer"),
                },
                clients=["pyzmq"],
            )
            for name, kind, durability in (
                ("LMDB", "lmdb", "a transaction of LMDB before each answer"),
                ("log file", "log", "one fdatasync of a file before each answer"),
            )
        ),
    )
}
"""By name; ours is the first."""
