"""Messages that no client of ours would send: the broker does not look into records."""

from __future__ import annotations

from lab.raw_peer import RawPeer

from malamute.protocol.batch import pack_record
from malamute.protocol.messages import Publish, Stored


def publish_damaged(url: str, stream: str) -> None:
    """Publish three messages, of which the second cannot be read."""
    records = [pack_record(None, b"1"), b"\xc1", pack_record(None, b"3")]
    with RawPeer(url, "") as peer:
        peer.send(Publish(stream, 1, ["s"] * 3, records))
        peer.next(Stored)
