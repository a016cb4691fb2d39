"""Messages: what is in a queue, and its dead letters."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row, argument
from malamute.protocol.arguments import ROWS, STATE
from malamute.protocol.messages import BOOLEAN, KIND, NAME, NUMBER, SEQUENCE, TEXT

MESSAGE_ROWS = 100
"""Rows of an answer about messages if no other number is asked for."""


class MessageRow(Row):
    """A queued message or a dead letter. `time` is in nanoseconds, `size` that of its record."""

    sequence: int
    time: int
    sender: str
    subject: str
    headers: dict[str, Any]
    body: bytes
    size: int
    properties: dict[str, Any]
    attempts: int
    state: str
    damaged: bool


class MessagesQuery(AdminQuery[list[MessageRow]]):
    """Messages of a mailbox or a service, or its dead letters, behind a sequence."""

    topic = "messages"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    dead: bool = argument(BOOLEAN, default=False)
    after: int = argument(NUMBER, default=0)
    limit: int = argument(ROWS, default=MESSAGE_ROWS)
    where: str = argument(TEXT, default="")
    state: str = argument(STATE, default="")


class MessageQuery(AdminQuery[MessageRow]):
    """One message of a mailbox or a service, or one of its dead letters, with its whole body."""

    topic = "message"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    sequence: int = argument(SEQUENCE)
    dead: bool = argument(BOOLEAN, default=False)
