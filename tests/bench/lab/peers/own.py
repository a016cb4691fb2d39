"""Malamute with its own blocking client: the workloads of `malamute bench`."""

from __future__ import annotations

from lab.peers.work import PeerWork
from malamute.bench import relay, workloads
from malamute.bench.processes import Measured
from malamute.bench.workloads import Begin
from malamute.client.options import SendAssurance

NOT_STORED: SendAssurance = "none"
STORED: SendAssurance = "stored"
"""How sure a request is to be before its worker has it."""


def publish_batched(begin: Begin, work: PeerWork) -> Measured:
    """A column of messages at a time, confirmed."""
    return workloads.publish_columns(begin, work.workload)


def publish_unconfirmed(begin: Begin, work: PeerWork) -> Measured:
    """A message a command, and no word from the broker."""
    return workloads.publish_unconfirmed(begin, work.workload)


def publish_confirmed(begin: Begin, work: PeerWork) -> Measured:
    """A message a call, each confirmed, as many under way as the publisher's window has."""
    return workloads.publish_each(begin, work.workload._replace(batch=1))


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """A message when the one before it is stored."""
    return workloads.publish_and_wait(begin, work.workload)


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """Lists of messages, of one subscriber or of many with a thread each."""
    return workloads.subscribe_many(begin, work.workload, work.subscribers)


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request with its body."""
    return workloads.answer(begin, work.workload)


def ask(begin: Begin, work: PeerWork) -> Measured:
    """A request that is not stored first."""
    return workloads.ask(begin, work.workload._replace(assurance=NOT_STORED))


def ask_stored(begin: Begin, work: PeerWork) -> Measured:
    """A request that is stored first."""
    return workloads.ask(begin, work.workload._replace(assurance=STORED))


def relay_answer(begin: Begin, work: PeerWork) -> Measured:
    """The worker of the bare ROUTER."""
    return relay.answer(begin, work.workload)


def relay_ask(begin: Begin, work: PeerWork) -> Measured:
    """Who asks it, by way of the bare ROUTER."""
    return relay.ask(begin, work.workload)
