"""The diagrams of the documents. `make docs` writes them to docs/images/.

The packages and the states of a queued message are drawn from the code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

from grimp import build_graph

sys.path.insert(0, str(Path(__file__).parent))

from drawing import Box, Drawing

from malamute.core.queue.state import DELAYED, DELIVERED, PENDING, READY, SETTLED, SETTLING, TRANSITIONS

IMAGES = Path(__file__).parents[1] / "images"


def overview() -> Drawing:
    """Who talks to whom."""
    d = Drawing("Clients, the broker and its disk", 820, 330)
    d.box(14, 14, 180, 300, "programs", kind="frame")
    publisher = d.box(34, 46, 140, 48, "publisher", "client library", kind="net")
    subscriber = d.box(34, 112, 140, 48, "subscriber", "client library", kind="net")
    worker = d.box(34, 178, 140, 48, "worker, requester", "client library", kind="net")
    command = d.box(34, 244, 140, 48, "malamute …", "command line", kind="net")
    d.box(314, 14, 350, 300, "broker: one process", kind="frame")
    router = d.box(330, 46, 88, 246, "ROUTER", "sockets", kind="net")
    streams = d.box(446, 46, 200, 56, "streams", "journal, index, credit", kind="pure")
    mailboxes = d.box(446, 116, 200, 56, "mailboxes", "one recipient each", kind="pure")
    services = d.box(446, 186, 200, 56, "services", "queues that workers share", kind="pure")
    d.text(546, 276, "writer and reader threads", pale=True)
    store = d.box(704, 46, 102, 246, "store", "LMDB,", "one file of", "fixed size", kind="disk")
    d.arrow(publisher.side("r"), router.side("l-0.8"), "PUBLISH")
    d.arrow(router.side("l-0.26"), subscriber.side("r"), "DELIVER")
    d.arrow(worker.side("r"), router.side("l0.27"), "OFFER, REPLY")
    d.arrow(command.side("r"), router.side("l0.82"), "QUERY, CHANGE")
    for engine in (streams, mailboxes, services):
        d.arrow((router.x + router.width, engine.side("l")[1]), engine.side("l"))
        d.arrow(engine.side("r"), (store.x, engine.side("r")[1]))
    return d


def patterns() -> Drawing:
    """The three patterns side by side."""
    d = Drawing("Streams, mailboxes and services", 820, 258)
    lanes = [
        ("stream", "a copy for each; history is kept", ["publisher"], ["subscriber", "late subscriber"]),
        ("mailbox", "waits for its recipient", ["sender"], ["recipient"]),
        ("service", "one worker each; its reply comes back", ["requester"], ["worker", "worker"]),
    ]
    for number, (pattern, words, makers, takers) in enumerate(lanes):
        y = 16 + 82 * number
        middle = d.box(280, y, 260, 50, pattern, words, kind="pure")
        for place, names, side in ((26, makers, "l"), (640, takers, "r")):
            height = 50 if len(names) == 1 else 22
            for row, name in enumerate(names):
                box = d.box(place, y + 28 * row, 154, height, name, kind="net")
                shift = 0.0 if len(names) == 1 else 0.7 * row - 0.35
                end = middle.side(f"{side}{shift}")
                d.arrow(*((box.side("r"), end) if side == "l" else (end, box.side("l"))))
    return d


PACKAGES: dict[str, tuple[int, int, str, str]] = {
    "errors": (14, 148, "", "pure"),
    "protocol": (124, 236, "the wire", "pure"),
    "matching": (124, 148, "the index", "pure"),
    "store": (124, 60, "operations", "pure"),
    "client": (246, 290, "the SDK", "net"),
    "access": (246, 213, "the rules", "pure"),
    "door": (368, 290, "shares", "net"),
    "journal": (368, 14, "the disk", "disk"),
    "gateway": (490, 290, "HTTP", "net"),
    "pack": (612, 240, "links", "net"),
    "config": (368, 80, "the options", "plain"),
    "core": (368, 142, "the mind", "pure"),
    "spark": (490, 218, "the pipeline", "plain"),
    "pair": (490, 134, "two brokers", "net"),
    "server": (490, 50, "the process", "net"),
    "testing": (612, 14, "", "plain"),
    "bench": (612, 134, "", "plain"),
    "cli": (724, 190, "commands", "plain"),
}
"""Where each package stands, what it is, and of which kind."""

SAME_PACKAGE = {"aio": "client", "pytest_plugin": "testing", "__main__": "cli"}
"""Modules beside the packages, and the package that they belong to."""


def package_graph() -> dict[str, set[str]]:
    """Which packages each package uses, for types too, without what it uses by way of others.

    Raises:
        CycleError: they use each other in a circle.
    """
    graph = build_graph("malamute", exclude_type_checking_imports=False, cache_dir=None)
    uses: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for module in graph.modules:
        for used in graph.find_modules_directly_imported_by(module):
            one, other = _package(module), _package(used)
            if one and other and one != other:
                uses[one].add(other)
    below: dict[str, set[str]] = {}
    for package in TopologicalSorter(uses).static_order():
        below[package] = uses[package].union(*(below[used] for used in uses[package]))
    return {
        package: {other for other in used if not any(other in below[another] for another in used)}
        for package, used in uses.items()
    }


def _package(module: str) -> str:
    """The package of a module; empty for the whole and for the version, and for adapters: none is drawn."""
    first = module.split(".")[1] if "." in module else ""
    first = SAME_PACKAGE.get(first, first)
    return "" if first in ("version", "integrations") else first


def packages() -> Drawing:
    """The imports: an arrow points from the package that is used to the one that uses it."""
    d = Drawing("The packages, and the direction of imports", 820, 366)
    boxes = {name: Box(x, y, 84, 46) for name, (x, y, _, _) in PACKAGES.items()}
    arrows = [(used, package) for package, below in package_graph().items() for used in below]

    def place(side: str, name: str, end: str) -> str:
        """Where on its side an arrow ends, so that those of one box lie side by side."""
        mine, other = (0, 1) if side == "r" else (1, 0)
        ends = sorted(
            (arrow[other] for arrow in arrows if arrow[mine] == name), key=lambda far: (boxes[far].y, far)
        )
        return f"{side}{1.4 * (ends.index(end) + 0.5) / len(ends) - 0.7:.2f}"

    for used, package in sorted(arrows):
        d.arrow(boxes[used].side(place("r", used, package)), boxes[package].side(place("l", package, used)))
    # Above the arrows, which may pass behind some.
    for name, (x, y, words, kind) in PACKAGES.items():
        d.box(x, y, 84, 46, name, *filter(None, [words]), kind=kind)
    d.text(14, 356, "green: pure code; what is used by way of another is not drawn", pale=True, at="start")
    return d


def iteration() -> Drawing:
    """One iteration of the loop, and the threads beside it."""
    d = Drawing("One iteration of the loop", 820, 300)
    d.box(196, 14, 410, 272, "the loop: one thread", kind="frame")
    wait = d.box(220, 48, 362, 42, "1  wait", "for the socket, a thread, or core.next_deadline()")
    take = d.box(220, 122, 362, 58, "2  take in", "receive · stored · answered · lost · tick", kind="pure")
    do = d.box(220, 212, 362, 54, "3  do what core.ready() says", "appends · reads · sends", kind="pure")
    d.box(14, 114, 116, 74, "socket", "ROUTER", kind="net")
    threads = d.box(660, 92, 146, 148, "writer, reader", "two threads", "for the disk", kind="disk")
    d.arrow(wait.side("b"), take.side("t"))
    d.arrow(take.side("b"), do.side("t"))
    d.arrow((130, 140), (take.x, 140), "commands")
    d.arrow((do.x, 226), (72, 188), "deliveries")
    d.arrow((threads.x, 150), (take.x + take.width, 150), "done")
    d.arrow((do.x + do.width, 228), (threads.x, 228), "orders")
    return d


def message() -> Drawing:
    """One message that is published and confirmed."""
    d = Drawing("One message, step by step", 820, 330)
    kinds = [("publisher", "net"), ("loop and core", "pure"), ("writer", "disk"), ("subscriber", "net")]
    publisher, core, writer, subscriber = d.lifelines(kinds, 100, 206, 318)
    steps = [
        (publisher, core, "PUBLISH number 7"),
        (core, core, "index, batch of this iteration"),
        (core, writer, "append"),
        (core, subscriber, "DELIVER, without waiting for the disk"),
        (writer, writer, "commit, fsync"),
        (writer, core, "stored"),
        (core, publisher, "STORED 7, sequence 42"),
    ]
    for number, (tail, tip, words) in enumerate(steps):
        y = 78 + 36 * number
        if tail == tip:
            d.text(tail + 8, y + 2, words, pale=True, at="start")
        elif words.startswith("DELIVER"):
            d.arrow((tail, y), (tip, y))
            d.text((writer + subscriber) / 2 + 8, y - 6, "DELIVER, not waiting", pale=True, halo=True)
        else:
            d.arrow((tail, y), (tip, y), words)
    return d


def subscription() -> Drawing:
    """The states of a subscription."""
    d = Drawing("The states of a subscription", 820, 200)
    start = d.box(14, 74, 120, 50, "SUBSCRIBE")
    live = d.box(300, 14, 200, 58, "live", "gets what is published", kind="pure")
    replay = d.box(300, 128, 200, 58, "replay", "from memory or the journal", kind="disk")
    gap = d.box(660, 128, 146, 58, "GAP", "first, last, reason", kind="net")
    d.arrow(start.side("r-0.4"), live.side("l"), "start = new")
    d.arrow(start.side("r0.4"), replay.side("l"), "start in the past")
    d.arrow(live.side("b-0.4"), replay.side("t-0.4"), "no credit")
    d.arrow(replay.side("t0.4"), live.side("b0.4"), "at the head, with credit")
    d.arrow(replay.side("r"), gap.side("l"), "the ring has dropped it", dashed=True)
    return d


def request() -> Drawing:
    """What becomes of a request."""
    d = Drawing("What becomes of a request", 820, 150)
    asked = d.box(14, 24, 110, 50, "REQUEST")
    waiting = d.box(226, 16, 150, 66, "ready", "on the disk, in order", kind="disk")
    out = d.box(520, 16, 140, 66, "with a worker", "attempts + 1", kind="pure")
    done = d.box(716, 24, 90, 50, "completed", kind="net")
    d.arrow(asked.side("r"), waiting.side("l"), "stored")
    d.arrow(waiting.side("r-0.5"), out.side("l-0.5"), "credit and pattern")
    d.arrow(out.side("l0.5"), waiting.side("r0.5"), "worker lost")
    d.arrow(out.side("r"), done.side("l"), "final")
    d.text(448, 120, "A reply that is final goes into the requester's mailbox in the transaction", pale=True)
    d.text(448, 136, "that removes the request.", pale=True)
    return d


def queue_states() -> Drawing:
    """The states of a queued message. What happens is from the table of the core; here is only where."""
    d = Drawing("The states of a queued message", 820, 352)
    frame = d.box(14, 14, 560, 324, "in the queue", kind="frame")
    boxes = {
        DELAYED: d.box(40, 48, 140, 56, "DELAYED", "until a time"),
        READY: d.box(40, 156, 140, 56, "READY", "until there is credit", kind="pure"),
        DELIVERED: d.box(40, 264, 140, 56, "DELIVERED", "to a consumer", kind="net"),
        PENDING: d.box(410, 156, 140, 56, "PENDING", "until its commit", kind="disk"),
        SETTLING: d.box(664, 156, 140, 56, "SETTLING", "on its way to the disk", kind="disk"),
        SETTLED: d.box(664, 272, 140, 56, "SETTLED", "it has left the queue"),
    }
    sides = {
        (PENDING, DELAYED): ("l-0.9", "r-0.4"),
        (DELAYED, PENDING): ("r0.7", "l-0.6"),
        (PENDING, READY): ("l-0.35", "r-0.35"),
        (READY, PENDING): ("r0.3", "l0.3"),
        (PENDING, DELIVERED): ("l0.7", "r-0.7"),
        (DELIVERED, PENDING): ("r0.4", "b-0.4"),
        (READY, DELIVERED): ("b", "t"),
        (SETTLING, PENDING): ("l", "r"),
        (SETTLING, SETTLED): ("b", "t"),
    }
    # What leads to the same from all that is in the queue is one arrow from the frame.
    inside = [state for state in TRANSITIONS if state not in (SETTLING, SETTLED)]
    common = set.intersection(*({*TRANSITIONS[state].items()} for state in inside))
    for event, after in sorted(common):
        tip = boxes[after].side("t-0.4" if after == SETTLING else "l")
        d.arrow((frame.x + frame.width, 100 if after == SETTLING else tip[1]), tip, event)
    for state, following in TRANSITIONS.items():
        for event, after in following.items():
            if state not in inside or (event, after) not in common:
                tail, tip_side = sides[state, after]
                d.arrow(boxes[state].side(tail), boxes[after].side(tip_side), event)
    d.arrow((480, 74), boxes[PENDING].side("t"), "enqueue")
    return d


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    f"{make.__name__}.svg": make
    for make in (overview, patterns, packages, iteration, message, subscription, request, queue_states)
}

if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, make in DIAGRAMS.items():
        (IMAGES / name).write_text(make().svg, encoding="utf-8")
