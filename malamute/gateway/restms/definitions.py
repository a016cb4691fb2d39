"""Definitions of a domain, as values: feeds, pipes, joins, and staged contents."""

from __future__ import annotations

from typing import Union

import msgspec

LOG = "restms"
"""The stream of definitions: the last message of each subject counts, an empty one deletes."""

CONTENTS = "restms.contents"
"""The stream of staged contents."""

DEFAULT_FEED = "default"
DEFAULT_STREAM = "restms.default"
PRIVATE_PREFIX = "restms.feed."
PIPE_PREFIX = "restms.pipe."
OWN_PREFIX = "restms"
"""The prefix of the gateway's own streams and services."""

DISK = "disk"
MEMORY = "memory"
RING = "ring"
FEED_STORAGES = (DISK, MEMORY, RING)
PIPE_STORAGES = (DISK, MEMORY)


class RestFeed(msgspec.Struct, frozen=True, tag="feed", tag_field="kind"):
    """A feed. Its messages are in the stream with its name."""

    name: str
    type: str = ""
    title: str = ""
    license: str = ""
    storage: str = DISK
    size: int = 0
    """Maximum messages of a ring; 0 is no limit."""
    password: str = ""
    """The salted hash of the password of posts; empty without one."""
    private: bool = False
    imported: str = ""
    """`stream` or `service` for a feed that stands for one of the broker; empty for a defined feed."""
    owner: str = ""
    """The user who created it; empty for anonymous ones. The same in the other definitions."""

    @property
    def stream(self) -> str:
        """Return the stream of its messages."""
        if self.private:
            return PRIVATE_PREFIX + self.name
        return DEFAULT_STREAM if self.name == DEFAULT_FEED else self.name


class Pipe(msgspec.Struct, frozen=True, tag="pipe", tag_field="kind"):
    """A pipe. Its messages are in a service of the broker."""

    name: str
    type: str = ""
    title: str = ""
    storage: str = DISK
    owner: str = ""

    @property
    def service(self) -> str:
        """Return the service whose requests are the messages."""
        return PIPE_PREFIX + self.name


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="kind"):
    """A join of a pipe to a feed."""

    name: str
    pipe: str
    feed: str
    type: str = ""
    address: str = ""
    headers: dict[str, str] = {}
    user: str = ""
    default: bool = False
    """Whether the join was created and is deleted with the pipe."""
    imported: str = ""
    """The kind of a feed of the broker; empty for a defined feed."""
    owner: str = ""


class Staged(msgspec.Struct, frozen=True, tag="content", tag_field="kind"):
    """A content that waits for its message."""

    name: str
    feed: str
    type: str
    sequence: int
    """The sequence in `CONTENTS`."""
    owner: str = ""


Definition = Union[RestFeed, Pipe, Join, Staged]  # noqa: UP007

_decoder: msgspec.json.Decoder[Definition] = msgspec.json.Decoder(Definition)
encode = msgspec.json.Encoder().encode


def subject_of(definition: Definition) -> str:
    """Return the subject of a definition: its kind and its name."""
    return f"{type(definition).__struct_config__.tag}.{definition.name}"


def decode(body: bytes) -> Definition:
    """Return a definition from the log. Raises `ValueError`."""
    return _decoder.decode(body)


BUILT_IN = RestFeed(DEFAULT_FEED, title="Default feed")
