"""The client for asyncio programs: the names of `malamute`, awaited. See `malamute.client.aio.client`."""

from malamute.client.aio.client import Client, Sent, connect
from malamute.client.aio.consumers import Mailbox, Replies, Request, Subscription, Work
from malamute.client.aio.publisher import Publisher, Receipt
from malamute.client.session.message import Mail, Message

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
