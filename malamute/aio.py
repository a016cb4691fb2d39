"""The client for asyncio programs: the names of `malamute`, awaited. See `malamute.client.aio.client`."""

from malamute.client.aio.bucket import Bucket, KeyWatch
from malamute.client.aio.client import Client, connect
from malamute.client.aio.consumers import Mailbox, Replies, Request, Subscription, Work
from malamute.client.aio.demand import Demand
from malamute.client.aio.publisher import Publisher
from malamute.client.aio.receipts import Receipt, Sent
from malamute.client.session.message import Mail, Message
from malamute.client.session.watching import KeyValue

__all__ = [
    "Bucket",
    "Client",
    "Demand",
    "KeyValue",
    "KeyWatch",
    "Mail",
    "Mailbox",
    "Message",
    "Publisher",
    "Receipt",
    "Replies",
    "Request",
    "Sent",
    "Subscription",
    "Work",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
