"""Malamute: a message broker with streams, mailboxes and service queues, and its client.

The names of the client are loaded when they are first used, so that a part such as `malamute.matching`
can be imported where the client's libraries are not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from malamute.client.message import Mail, Message, Request
    from malamute.client.receipts import Receipt
    from malamute.client.sync import Client, Sent, connect
    from malamute.errors import MalamuteError

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Mail",
    "MalamuteError",
    "Message",
    "Receipt",
    "Request",
    "Sent",
    "__version__",
    "connect",
]

_HOMES = {
    "Client": "malamute.client.sync",
    "Mail": "malamute.client.message",
    "MalamuteError": "malamute.errors",
    "Message": "malamute.client.message",
    "Receipt": "malamute.client.receipts",
    "Request": "malamute.client.message",
    "Sent": "malamute.client.sync",
    "connect": "malamute.client.sync",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'malamute' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
