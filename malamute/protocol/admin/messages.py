"""Messages of a queue, and its dead letters."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Boolean, MessageState, Name, Number, Position, QueueKind, RowCount, Text

MESSAGE_ROWS = 100
"""Rows of an answer about messages without a `limit`."""


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

    kind: QueueKind
    name: Name
    dead: Boolean = False
    after: Number = 0
    limit: RowCount = MESSAGE_ROWS
    where: Text = ""
    state: MessageState = ""


class MessageQuery(AdminQuery[MessageRow]):
    """One message of a mailbox or a service, or one of its dead letters, with its whole body."""

    topic = "message"

    kind: QueueKind
    name: Name
    sequence: Position
    dead: Boolean = False
