"""Transcripts: dialogues between clients and the core, with all that the broker answers.

    # Credit                                a comment; the heading of docs/protocol.md comes after "Proves:"
    alice> PUBLISH weather number=1 oslo:-3 a command, in an iteration of its own
    & alice> PUBLISH weather rome:12        the same, in one iteration with the command that follows
    ! commit                                something that is done to the broker, see `ACTIONS`
    alice< STORED 1-1 at 1                  what a client gets; messages are in the lines below it
        1 oslo "-3" from alice

The words of a command are the first field without a name, `field=value`, and what the lists hold:
`subject:body` for a message (`subject:x*9` is nine bytes), `sequence:body` for a reply that is not final and
`sequence!:body` for one that is, `family:pattern` for a criterion, `first-last` for a range.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from core_bench import Bench, items, pack_record

from malamute.config.sections import POLICY_FIELDS
from malamute.errors import BY_CODE, StoreError
from malamute.protocol.limits import Limits
from malamute.protocol.messages import BY_OPCODE, BY_TYPE, Deliver, Error, Stored, Welcome
from malamute.store.policies import QueuePolicy, StreamRetention

COMMANDS = {spec.name: spec for spec in BY_TYPE.values()}
NAMED_FIRST = {"PUBLISH": "stream", "SEND": "address", "REQUEST": "service"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "HELLO": {"versions": [2], "address": ""},
    "PUBLISH": {"number": 0},
    "SEND": {"number": 0},
    "REQUEST": {"number": 0},
    "REPLY": {"number": 0},
    "QUERY": {"arguments": {}},
}
HIDDEN = {"limits", "software", "broker", "session", "attempt", "incarnation", "urls"}


def play(text: str) -> str:
    """The transcript with all outputs as they are now."""
    stage = Stage()
    lines = []
    for line in text.splitlines():
        if line[:1] not in ("#", "&", "!", "") and ">" not in line.partition(" ")[0]:
            continue  # an output of the last time
        lines.append(line)
        if line and not line.startswith("#"):
            lines += stage.do(line)
    return "\n".join(lines) + "\n"


class Stage:
    """A broker on a bench, and who talks to it."""

    def __init__(self) -> None:
        self.bench = Bench()

    def do(self, line: str) -> Iterator[str]:
        """Do what a line says; gives what clients get."""
        if line.startswith("! "):
            name, *words = line[2:].split()
            ACTIONS[name](self, *words)
        else:
            speaker, _, command = line.removeprefix("& ").partition("> ")
            self._say(speaker, command)
            if line.startswith("& "):
                return
            self.bench.iterate()
        log, self.bench.log = self.bench.log, []
        for name, message in log:
            yield from shown(name, message)

    def _say(self, speaker: str, command: str) -> None:
        if command.startswith("BYTES "):
            self.bench.receive_frames(speaker, [bytes.fromhex(command.removeprefix("BYTES "))])
        else:
            self.bench.receive(speaker, parsed(command))

    # Actions

    def broker(self, *words: str) -> None:
        """A new broker with limits, and the settings of a bench."""
        options = dict(_pair(word) for word in words)
        kept = options.pop("retention", None)
        bench = {name: options.pop(name) for name in BENCH_OPTIONS if name in options}
        queues = {field: options.pop(name) for name, field in POLICY_FIELDS.items() if name in options}
        if queues:
            bench["queues"] = QueuePolicy(**queues)
        if "no_journal" in bench:
            bench["no_journal"] = (bench["no_journal"],)
        self.bench = Bench(
            Limits()._replace(**options),
            retention=StreamRetention(messages_max=kept) if kept else None,
            **bench,
        )

    def commit(self) -> None:
        self.bench.commit()

    def fail(self, kind: str = "") -> None:
        self.bench.fail(StoreError("input/output error") if kind else None)

    def read(self) -> None:
        self.bench.read()

    def settle(self) -> None:
        self.bench.settle()

    def crash(self) -> None:
        self.bench.crash()

    def restart(self) -> None:
        self.bench.restart()

    def lost(self, name: str) -> None:
        self.bench.lost(name)

    def block(self, name: str) -> None:
        self.bench.block(name)

    def unblock(self, name: str) -> None:
        self.bench.unblock(name)

    def wait(self, seconds: str) -> None:
        self.bench.wait(float(seconds))


BENCH_OPTIONS = ("expiry", "no_journal", "lifecycle")

ACTIONS: dict[str, Callable[..., None]] = {
    name: getattr(Stage, name)
    for name in (
        *("broker", "commit", "fail", "read", "settle", "crash", "restart"),
        *("lost", "block", "unblock", "wait"),
    )
}


def parsed(command: str) -> Any:
    """The message that the words describe."""
    name, *words = command.split()
    spec = COMMANDS[name]
    known = spec.message._fields
    fields: dict[str, Any] = dict(DEFAULTS.get(name, {}))
    if words and "=" not in words[0] and name in NAMED_FIRST:
        fields[NAMED_FIRST[name]] = words.pop(0)
    pairs = [_pair(word) for word in words if word.partition("=")[0] in known]
    rest = [word for word in words if word.partition("=")[0] not in known]
    fields |= dict(pairs)
    if rest:
        fields |= _LISTS[next(name for name in _LISTS if name in known)](rest)
    return spec.message(**fields)


def _pair(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _record(body: str) -> bytes:
    text, _, times = body.partition("*")
    return pack_record(None, text.encode() * int(times or 1))


def _messages(words: list[str]) -> dict[str, Any]:
    pairs = [word.partition(":") for word in words]
    return {"subjects": [p[0] for p in pairs], "records": [_record(p[2]) for p in pairs]}


def _replies(words: list[str]) -> dict[str, Any]:
    pairs = [word.partition(":") for word in words]
    return {
        "sequences": [int(p[0].rstrip("!")) for p in pairs],
        "finals": [p[0].endswith("!") for p in pairs],
        "records": [_record(p[2]) for p in pairs],
    }


def _criteria(words: list[str]) -> dict[str, Any]:
    return {"criteria": [word.split(":", 1) for word in words]}


def _ranges(words: list[str]) -> dict[str, Any]:
    return {"ranges": [[*map(int, word.split("-"))] for word in words]}


_LISTS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "subjects": _messages,
    "sequences": _replies,
    "criteria": _criteria,
    "ranges": _ranges,
}
"""The fields of words without a name, by the field that a command has."""


def shown(name: str, message: Any) -> Iterator[str]:
    """The lines for what a client gets."""
    if isinstance(message, Deliver):
        yield f"{name}< DELIVER source={message.source} after={message.after}"
        for item in items(message):
            yield f"    {item.sequence} {item.subject} {_body(item.body)}{_more(item)}"
        return
    if isinstance(message, Stored):
        words = [f"{first}-{last} at {sequence}" for first, last, sequence in message.ranges]
        yield f"{name}< STORED {', '.join(words)}"
        return
    yield f"{name}< {BY_TYPE[type(message)].name} {_fields(message)}".rstrip()


def _body(body: bytes) -> str:
    text = body.decode()
    return f'"{text}"' if len(text) < 40 else f"{text[0]}*{len(text)}"


def _more(item: Any) -> str:
    words = [f" from {item.sender}"] if item.sender and not item.sender.startswith("$") else []
    words += [f" attempt {item.attempt}"] if item.attempt > 1 else []
    words += [f" {name}={value}" for name, value in (item.properties or {}).items()]
    words += [f" [{name} {value}]" for name, value in (item.headers or {}).items()]
    return "".join(words)


def _fields(message: Any) -> str:
    values = message._asdict()
    if isinstance(message, Error):
        values["code"] = f"{message.code} {BY_CODE[message.code].__name__}"
        values["retry_after"] = message.retry_after or None
        values["details"] = message.details or None
    if "about" in values:
        values["about"] = BY_OPCODE[message.about].name if message.about in BY_OPCODE else message.about
    if isinstance(message, Welcome):
        values = {name: value for name, value in values.items() if name not in HIDDEN}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
