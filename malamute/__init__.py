"""Malamute: a message broker with streams, mailboxes and service queues, and its client.

Every error is here by its name. The names of the client are loaded when they are first used, so that a part
such as `malamute.matching` can be imported where the client's libraries are not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from malamute.errors import (
    AccessRefused,
    AddressTaken,
    Closed,
    ConfigError,
    ConnectionLost,
    ConnectTimeout,
    CursorLost,
    Disconnected,
    Failed,
    HttpRefused,
    InternalError,
    InUse,
    InvalidName,
    InvalidRule,
    InvalidSelector,
    InvalidValue,
    KeyReused,
    LinkError,
    LoginNeeded,
    MalamuteError,
    Malformed,
    MediaTypeRefused,
    MethodRefused,
    NoSuchResource,
    NotAsExpected,
    NotFound,
    NotInstalled,
    NotOutstanding,
    NotPrimary,
    NoWorkers,
    NumberTooOld,
    OriginRefused,
    OutOfSockets,
    QuotaExceeded,
    Refused,
    RequestTimeout,
    StorageFull,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreTooNew,
    StoreTooOld,
    TimedOut,
    TooFast,
    TooLarge,
    TooMany,
    TrackerInUse,
    TryLater,
    UnexpectedCommand,
    UnknownCommand,
    UnsupportedVersion,
)
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.client.session.message import Mail, Message
    from malamute.client.session.outbox import StoredSequence
    from malamute.client.session.watching import KeyValue
    from malamute.client.sync.bucket import Bucket, KeyWatch
    from malamute.client.sync.client import Client, connect
    from malamute.client.sync.consumers import Mailbox, Replies, Request, Subscription, Work
    from malamute.client.sync.demand import Demand
    from malamute.client.sync.publisher import Publisher
    from malamute.client.sync.receipts import Receipt, Sent
    from malamute.protocol.names import Uri

__all__ = [
    "AccessRefused",
    "AddressTaken",
    "Bucket",
    "Client",
    "Closed",
    "ConfigError",
    "ConnectTimeout",
    "ConnectionLost",
    "CursorLost",
    "Demand",
    "Disconnected",
    "Failed",
    "HttpRefused",
    "InUse",
    "InternalError",
    "InvalidName",
    "InvalidRule",
    "InvalidSelector",
    "InvalidValue",
    "KeyReused",
    "KeyValue",
    "KeyWatch",
    "LinkError",
    "LoginNeeded",
    "Mail",
    "Mailbox",
    "MalamuteError",
    "Malformed",
    "MediaTypeRefused",
    "Message",
    "MethodRefused",
    "NoSuchResource",
    "NoWorkers",
    "NotAsExpected",
    "NotFound",
    "NotInstalled",
    "NotOutstanding",
    "NotPrimary",
    "NumberTooOld",
    "OriginRefused",
    "OutOfSockets",
    "Publisher",
    "QuotaExceeded",
    "Receipt",
    "Refused",
    "Replies",
    "Request",
    "RequestTimeout",
    "Sent",
    "StorageFull",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreLost",
    "StoreTooNew",
    "StoreTooOld",
    "StoredSequence",
    "Subscription",
    "TimedOut",
    "TooFast",
    "TooLarge",
    "TooMany",
    "TrackerInUse",
    "TryLater",
    "UnexpectedCommand",
    "UnknownCommand",
    "UnsupportedVersion",
    "Uri",
    "Work",
    "__version__",
    "connect",
]

_HOMES = {
    "Bucket": "malamute.client.sync.bucket",
    "Client": "malamute.client.sync.client",
    "Demand": "malamute.client.sync.demand",
    "KeyValue": "malamute.client.session.watching",
    "Mail": "malamute.client.session.message",
    "Mailbox": "malamute.client.sync.consumers",
    "Message": "malamute.client.session.message",
    "Publisher": "malamute.client.sync.publisher",
    "Receipt": "malamute.client.sync.receipts",
    "Replies": "malamute.client.sync.consumers",
    "Request": "malamute.client.sync.consumers",
    "Sent": "malamute.client.sync.receipts",
    "StoredSequence": "malamute.client.session.outbox",
    "Subscription": "malamute.client.sync.consumers",
    "Uri": "malamute.protocol.names",
    "KeyWatch": "malamute.client.sync.bucket",
    "Work": "malamute.client.sync.consumers",
    "connect": "malamute.client.sync.client",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'malamute' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
