"""What is defined in a domain, as values: feeds, pipes, joins, and contents that are staged."""

from __future__ import annotations

from typing import Union

import msgspec

LOG = "restms"
"""The stream that has the definitions: the last message of each subject counts, and none if it is empty."""

CONTENTS = "restms.contents"
"""The stream that has the contents which are staged."""

DEFAULT_FEED = "default"
DEFAULT_STREAM = "restms.default"
PRIVATE_PREFIX = "restms.feed."
PIPE_PREFIX = "restms.pipe."
OWN_PREFIX = "restms"
"""How the names of streams and services begin that are the gateway's own."""

DISK = "disk"
MEMORY = "memory"
RING = "ring"
FEED_STORAGES = (DISK, MEMORY, RING)
PIPE_STORAGES = (DISK, MEMORY)


class RestFeed(msgspec.Struct, frozen=True, tag="feed", tag_field="kind"):
    """A feed. What it has is in the stream with its name."""

    name: str
    type: str = ""
    title: str = ""
    license: str = ""
    storage: str = DISK
    size: int = 0
    """The most messages that a ring keeps; 0 is no limit."""
    password: str = ""
    """What the password of posts is checked by; empty if there is none."""
    private: bool = False
    imported: str = ""
    """`stream` or `service`: it is one of the broker's, and no feed was made for it."""
    owner: str = ""
    """The user who has made it; empty for nobody in particular. The same of the others."""

    @property
    def stream(self) -> str:
        """The stream that has its messages."""
        if self.private:
            return PRIVATE_PREFIX + self.name
        return DEFAULT_STREAM if self.name == DEFAULT_FEED else self.name


class Pipe(msgspec.Struct, frozen=True, tag="pipe", tag_field="kind"):
    """A pipe. What is in it is in a service of the broker."""

    name: str
    type: str = ""
    title: str = ""
    storage: str = DISK
    owner: str = ""

    @property
    def service(self) -> str:
        """The service whose requests are its messages."""
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
    """Whether it came with the pipe, and goes with it."""
    imported: str = ""
    """What its feed is, if that is the broker's."""
    owner: str = ""


class Staged(msgspec.Struct, frozen=True, tag="content", tag_field="kind"):
    """A content that waits for its message."""

    name: str
    feed: str
    type: str
    sequence: int
    """Where it is in `CONTENTS`."""
    owner: str = ""


Definition = Union[RestFeed, Pipe, Join, Staged]  # noqa: UP007

_decoder: msgspec.json.Decoder[Definition] = msgspec.json.Decoder(Definition)
encode = msgspec.json.Encoder().encode


def subject_of(definition: Definition) -> str:
    """Under which subject a definition is published: its kind and its name."""
    return f"{type(definition).__struct_config__.tag}.{definition.name}"


def decode(body: bytes) -> Definition:
    """A definition out of the log. Raises `ValueError`."""
    return _decoder.decode(body)


BUILT_IN = RestFeed(DEFAULT_FEED, title="Default feed")
