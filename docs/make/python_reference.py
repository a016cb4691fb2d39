"""The pages of the Python reference: one for each class, with an example from docs/make/examples.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).with_name("examples.md")
SETTLING = "^(finish|answer|give_back|release|report|has_one|pop_one|handled|answerer|completed)$"


class ClassPage(NamedTuple):
    """A page: its title, the objects on it, and a pattern of names that are for the package itself."""

    title: str
    objects: tuple[str, ...]
    hidden: str = "^$"


CLASSES = {
    "client": ClassPage("connect, Client", ("sync.client.connect", "sync.client.Client")),
    "publisher": ClassPage("Publisher", ("sync.publisher.Publisher",)),
    "receipts": ClassPage(
        "Receipt, Sent",
        ("sync.receipts.Receipt", "sync.receipts.Sent", "session.outbox.StoredSequence"),
        "^of$",
    ),
    "subscription": ClassPage("Subscription", ("sync.consumers.Subscription",), SETTLING),
    "message": ClassPage("Message, Mail", ("session.message.Message", "session.message.Mail")),
    "mailbox": ClassPage("Mailbox", ("sync.consumers.Mailbox",), SETTLING),
    "work": ClassPage("Work", ("sync.consumers.Work",), SETTLING),
    "request": ClassPage("Request", ("sync.consumers.Request",), "^(answerer|completed)$"),
    "replies": ClassPage("Replies", ("sync.consumers.Replies",)),
    "bucket": ClassPage(
        "Bucket, KeyWatch",
        ("sync.bucket.Bucket", "sync.bucket.KeyWatch", "session.watching.KeyValue"),
    ),
    "demand": ClassPage("Demand", ("sync.demand.Demand",)),
    "aio": ClassPage(
        "malamute.aio",
        (
            "aio.client.connect",
            "aio.client.Client",
            "aio.publisher.Publisher",
            "aio.consumers.Subscription",
            "aio.consumers.Mailbox",
            "aio.consumers.Work",
            "aio.consumers.Request",
            "aio.consumers.Replies",
            "aio.bucket.Bucket",
            "aio.bucket.KeyWatch",
            "aio.demand.Demand",
        ),
        SETTLING,
    ),
}
"""The pages by file name, in the order of the navigation; objects are below `malamute.client`."""


def examples() -> dict[str, str]:
    """Return the example of each page: the blocks below its heading."""
    parts = re.split(r"^## (\S+)$", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def class_page(name: str) -> str:
    """Return the page of a class: an example, and all that it has, from the docstrings."""
    page = CLASSES[name]
    parts = [f"# {page.title}", "## Example", examples()[name], "## Reference"]
    filters = ["!^_", f"!{page.hidden}"]
    parts += [
        f"::: malamute.client.{path}\n    options: {{filters: {filters}, show_overloads: false}}"
        for path in page.objects
    ]
    return "\n\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    f"reference/python/{name}.md": partial(class_page, name) for name in CLASSES
}
