"""The client for asyncio programs: the names of `malamute`, awaited. `malamute.client.aio` has the manual."""

from malamute.client.aio import Client, Sent, connect
from malamute.client.aio_consumers import Mailbox, Replies, Request, Subscription, Work
from malamute.client.aio_publisher import Publisher, Receipt
from malamute.client.message import Mail, Message

__all__ = [
    "Client",
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
