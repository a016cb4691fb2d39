"""The mind of the broker: sessions, streams, mailboxes, services. Pure."""

from malamute.core.broker import Core, Settings
from malamute.core.ready import Append, Read, Ready

__all__ = ["Append", "Core", "Read", "Ready", "Settings"]
