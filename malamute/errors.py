"""Every error of Malamute, one tree, each with a stable number.

The client raises the same classes as the broker: on the wire an error is its number and its text, and
`from_wire` returns the pair to its class. Numbers never change meaning. All classes are names of the package,
too: `malamute.TimedOut`.

    MalamuteError
    ├── Refused                     the broker refused a command; nothing was changed
    │   ├── Malformed          400      ├── InvalidName         414
    │   ├── AccessRefused      401      ├── InvalidSelector     415
    │   ├── NotFound           404      ├── InvalidValue        416
    │   ├── UnexpectedCommand  405      ├── NotOutstanding      420
    │   ├── UnsupportedVersion 406      ├── NumberTooOld        421
    │   ├── AddressTaken       409      ├── TrackerInUse        422
    │   ├── Disconnected       410      ├── InUse               423
    │   ├── NotAsExpected      412      ├── CursorLost          424
    │   ├── TooLarge           413      ├── TooMany             429
    │   ├── InvalidRule        417      ├── QuotaExceeded       430
    │   │                               └── UnknownCommand      501
    ├── Failed                      the broker could not do it now; the same command may succeed later
    │   ├── InternalError      500      ├── StorageFull         507
    │   ├── TryLater           503      └── NotPrimary          509
    │   ├── NoWorkers          504
    ├── LinkError                   on the client's side of the wire; 600 and 602 are `TimeoutError`s too
    │   ├── ConnectTimeout     600      ├── Closed              603
    │   ├── ConnectionLost     601      └── OutOfSockets        604
    │   ├── TimedOut           602
    ├── HttpRefused                 the gateway refused an HTTP request; the broker has not seen it
    │   ├── NoSuchResource     901      ├── LoginNeeded         905
    │   ├── MethodRefused      902      ├── OriginRefused       906
    │   ├── MediaTypeRefused   903      ├── KeyReused           907
    │   ├── RequestTimeout     904      └── TooFast             908
    ├── ConfigError            700
    │   └── NotInstalled       701      a library or program of an extra
    └── StoreError             800      the data directory
        ├── StoreLocked        801      ├── StoreCorrupt        803
        ├── StoreTooNew        802      ├── StoreLost           804
        └── StoreTooOld        805
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

NO_DETAILS: Mapping[str, Any] = {}


class MalamuteError(Exception):
    """The base of every error that Malamute raises.

    `text` names the fault; `code` and `hint` belong to the class, unless an error has a hint of its own.
    `about` is the opcode of the refused command and `ref` its number or source, both 0 without one.
    After `retry_after` seconds the same command is not refused for this reason; 0.0 is unknown. `details` are
    fields for programs.
    """

    code: ClassVar[int] = 0
    hint: str = ""

    def __init__(self, text: str = "", *, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        if hint:
            self.hint = hint
        self.about = 0
        self.ref = 0
        self.retry_after = 0.0
        self.details = NO_DETAILS

    def __str__(self) -> str:
        words = self.text or type(self).__name__
        return f"{words} (error {self.code})" if self.code else words


class Refused(MalamuteError):
    """Raised when the broker refused a command. Nothing was changed by it."""


class Malformed(Refused):
    """Raised when bytes cannot be read: they are of another form than expected, or damaged."""

    code = 400
    hint = "send what the text expects; `/v1/openapi.json` of a gateway describes every request of HTTP"


class AccessRefused(Refused):
    """Raised when the session has no permission for a command.

    If a rule decides, the broker's own log has the `action`, its `target` and the `rule`; the wire has not.
    """

    code = 401
    hint = "ask who runs the broker for a rule; names that start with '$' belong to the broker"

    def __init__(self, text: str = "", action: str = "", target: str = "", rule: str = "") -> None:
        super().__init__(text)
        self.action, self.target, self.rule = action, target, rule


class NotFound(Refused):
    """Raised when a command names something that is not there."""

    code = 404
    hint = "the command `list` of its kind shows what there is, such as `malamute stream list`"


class UnexpectedCommand(Refused):
    """Raised when a command is not allowed in the state that the session is in."""

    code = 405
    hint = "say HELLO first, and again when the broker was restarted"


class UnsupportedVersion(Refused):
    """Raised when client and broker share no version of the protocol."""

    code = 406
    hint = "install the same major version of malamute on both sides"


class AddressTaken(Refused):
    """Raised in a session whose address a newer session has taken over."""

    code = 409
    hint = "two programs connect with one address; the newest owns it"


class Disconnected(Refused):
    """Raised in a session that an operator has ended."""

    code = 410
    hint = "ask who runs the broker, before you connect again"


class NotAsExpected(Refused):
    """Raised when something was changed by another one since it was looked at."""

    code = 412
    hint = "look at it again, and change it if that is still wanted"


class TooLarge(Refused):
    """Raised when a message, a batch or a pattern is over its limit."""

    code = 413
    hint = "limits follow from limits.memory, limits.message_bytes and listen.connections"


class InvalidName(Refused):
    """Raised when a stream, mailbox or service name breaks the rule for names."""

    code = 414
    hint = "a name is 1 to 255 bytes of UTF-8 with no control characters, and not . or .."


class InvalidSelector(Refused):
    """Raised when a pattern or a match expression is invalid.

    `position` is the offset of the fault in characters, or None.
    """

    code = 415
    hint = "a pattern is such as temp.*, and a match expression such as unit = 'C' and level > 3"

    def __init__(self, text: str = "", position: int | None = None) -> None:
        super().__init__(text if position is None else f"{text} at position {position}")
        self.position = position


class InvalidValue(Refused):
    """Raised when a field has the right type and a value that cannot be used."""

    code = 416
    hint = "give a value such as the text expects; `--help` of a command shows examples"


class InvalidRule(Refused):
    """Raised when a rule of access is invalid.

    `position` is the offset of the fault in characters, or None.
    """

    code = 417
    hint = "a rule is such as 'publish,subscribe stream/news.#'; `malamute auth explain` shows what rules do"

    def __init__(self, text: str = "", position: int | None = None) -> None:
        super().__init__(text if position is None else f"{text} at position {position}")
        self.position = position


class NotOutstanding(Refused):
    """Raised when an ack or a reply names a delivery that this session does not hold."""

    code = 420
    hint = "it was acknowledged before, or returned to the queue when the connection broke"


class NumberTooOld(Refused):
    """Raised when a command number leaves a gap, or is too far behind the newest one of its session.

    The error is no outcome of that number: say HELLO again and send again from the first unsettled number.
    """

    code = 421
    hint = "number commands without gaps, and keep no more unconfirmed than WELCOME allows"


class TrackerInUse(Refused):
    """Raised when an unfinished message of the same sender has this tracker."""

    code = 422
    hint = "choose a new tracker for each message, or wait for the outcome"


class InUse(Refused):
    """Raised when something is not deleted or made anew because others use it. The text lists them."""

    code = 423
    hint = "end what the text names, or delete with --cascade; --dry-run shows what that would end"


class CursorLost(Refused):
    """Raised when the position of a cursor was in a part of the store that is damaged."""

    code = 424
    hint = "say where its reader is to go on: `malamute cursor reset`; or forget it: `malamute cursor delete`"


class TooMany(Refused):
    """Raised when a session or the broker has reached a limit of their number."""

    code = 429
    hint = "limits follow from limits.memory, limits.message_bytes and listen.connections"


class QuotaExceeded(Refused):
    """Raised when a user, or one of the user's groups, has reached its quota.

    For a rate, the same command is not refused for it after `retry_after` seconds; 0 is for a quota of
    resources in use, which have to be released. The broker's own log has the `owner` and the `limit`.
    """

    code = 430
    hint = "`malamute user show NAME` shows what is used; ask who runs the broker for more"

    def __init__(
        self, text: str = "", retry_after: float = 0.0, owner: tuple[str, str] = ("", ""), limit: str = ""
    ) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.owner, self.limit = owner, limit


class UnknownCommand(Refused):
    """Raised when this version has no such opcode."""

    code = 501
    hint = "install the same version of malamute on both sides"


class Failed(MalamuteError):
    """Raised when the broker cannot carry out a command now; the same command may succeed later."""


class InternalError(Failed):
    """Raised when the broker met a fault of its own."""

    code = 500
    hint = "the broker's log says more"


class TryLater(Failed):
    """Raised when something is full or busy for now, such as a queue, the disk's backlog or the sessions.

    Messages accepted before are safe.
    """

    code = 503
    hint = "wait until there is room, as when the recipient has caught up, then send again"


class NoWorkers(Failed):
    """Raised when an `immediate` message has no consumer."""

    code = 504
    hint = "start a worker that offers this subject, or send it without `immediate` and let it wait"


class StorageFull(Failed):
    """Raised when the store had no room for the message."""

    code = 507
    hint = "raise storage.size, or free the disk"


class NotPrimary(Failed):
    """Raised when the broker is not the primary of its pair, and serves nobody.

    `details` has the `urls` of the primary, as far as they are known, and the `role`, `timeline`, `lag` and
    `reason` of this broker.
    """

    code = 509
    hint = "connect with the URLs of both brokers: the client finds the primary by itself"

    @property
    def urls(self) -> Sequence[str]:
        """Return the URLs of the primary; none if it is unknown."""
        urls = self.details.get("urls")
        return [url for url in urls if isinstance(url, str)] if isinstance(urls, list) else []


class LinkError(MalamuteError):
    """Raised on the client's side for faults of the connection."""


class ConnectTimeout(LinkError, TimeoutError):
    """Raised when no broker answered in time; also a `TimeoutError` of Python."""

    code = 600
    hint = "`malamute broker run` starts a broker; --url or MALAMUTE_URL has its address, such as tcp://127.0.0.1:9999"


class ConnectionLost(LinkError):
    """Raised when the connection broke during a request."""

    code = 601
    hint = "the client connects again by itself: ask again when the broker is back"


class TimedOut(LinkError, TimeoutError):
    """Raised when an answer did not arrive in the caller's time; also a `TimeoutError` of Python."""

    code = 602
    hint = "give it more time, or see with `malamute service list` and `client list` who is there to answer"


class Closed(LinkError):
    """Raised when a closed client, publisher or subscription is used."""

    code = 603
    hint = "connect again, or close later: after the last call"


class OutOfSockets(LinkError):
    """Raised when the process can open no more sockets or files for one more connection."""

    code = 604
    hint = "a client takes 4 files and 3 sockets: raise `ulimit -n`, and ZMQ_MAX_SOCKETS of your own context"


class ConfigError(MalamuteError):
    """Raised when the configuration cannot be used. The text names the option."""

    code = 700
    hint = "correct what the text names; `malamute config show` prints every option with its default"


class NotInstalled(ConfigError):
    """Raised when a library or a program is missing that only an extra needs. The text says how to get it."""

    code = 701
    hint = "install the extra that the text names, such as pip install 'malamute[all]'"

    EXTRAS: ClassVar[Mapping[str, str]] = {
        "cryptography": "jwt",
        "deltalake": "tables",
        "duckdb": "parquet",
        "etcd3gw": "etcd",
        "jwt": "jwt",
        "mcp": "mcp",
        "mcp_types": "mcp",
        "numpy": "parquet",
        "obstore": "objects",
        "opentelemetry": "otel",
        "pandas": "spark",
        "psycopg": "postgresql",
        "pyarrow": "parquet",
        "pyiceberg": "tables",
        "pyspark": "spark",
    }
    """The extra with each library; all others are those of the gateway, in `http`."""

    @classmethod
    def module(cls, name: str | None) -> NotInstalled:
        """Return the error for a missing module, with the command that installs its library."""
        library = (name or "a library").partition(".")[0]
        return cls(f"{library} is missing: pip install 'malamute[{cls.EXTRAS.get(library, 'http')}]'")


class StoreError(MalamuteError):
    """Raised when the data directory cannot be used."""

    code = 800
    hint = "look at the path, whom it belongs to, and whether the disk is well"


class StoreLocked(StoreError):
    """Raised when another process uses the data directory."""

    code = 801
    hint = "stop the other broker, or give this one another storage.directory"


class StoreTooNew(StoreError):
    """Raised when a newer version of Malamute wrote the store."""

    code = 802
    hint = "run the version of malamute that wrote it, or a later one"


class StoreTooOld(StoreError):
    """Raised when the store has a format that this version of Malamute does not read any more."""

    code = 805
    hint = "give it a new storage.directory; what is in the old one, the version that wrote it can export"


class StoreCorrupt(StoreError):
    """Raised when the store cannot be read at all."""

    code = 803
    hint = "try malamute journal repair, or restore a backup with malamute journal restore"


class StoreLost(StoreError):
    """Raised when a store in use broke and cannot be opened again: the broker ends."""

    code = 804
    hint = "look at the disk and the kernel's log, then start the broker again"


class HttpRefused(MalamuteError):
    """Raised when the HTTP gateway refused a request. The broker has not seen it."""


class NoSuchResource(HttpRefused):
    """Raised when an HTTP request names a path that the gateway does not have."""

    code = 901
    hint = "`/v1/openapi.json` of the gateway describes every path"


class MethodRefused(HttpRefused):
    """Raised when a path of the gateway does not know the method of an HTTP request."""

    code = 902
    hint = "use a method of the header Allow of the answer"


class MediaTypeRefused(HttpRefused):
    """Raised when the body of an HTTP request is of a type, or of an encoding, that is not read here."""

    code = 903
    hint = "give the header Content-Type one of the types that the text names"


class RequestTimeout(HttpRefused):
    """Raised when the body of an HTTP request did not come in time. Nothing was done."""

    code = 904
    hint = "send the whole body at once, in smaller requests if the line is slow"


class LoginNeeded(HttpRefused):
    """Raised when an HTTP request does not prove who sends it."""

    code = 905
    hint = "send the header Authorization, as Basic with user and password or as Bearer with a token"


class OriginRefused(HttpRefused):
    """Raised when a browser sends a request for a page of another site, or names a host that is not ours."""

    code = 906
    hint = "start the gateway with --allow-origin for that site, or with --allow-host for that name"


class KeyReused(HttpRefused):
    """Raised when an Idempotency-Key was used before, for another request."""

    code = 907
    hint = "make a new key for each request, and repeat it only with the same request"


class TooFast(HttpRefused):
    """Raised when a user or an address sends more HTTP requests than its rate allows.

    The same request is served after `retry_after` seconds.
    """

    code = 908
    hint = "wait as long as the header Retry-After says; send several messages in one request"

    def __init__(self, text: str = "", retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


def _tree(base: type[MalamuteError]) -> list[type[MalamuteError]]:
    return [base] + [error for child in base.__subclasses__() for error in _tree(child)]


BY_CODE: dict[int, type[MalamuteError]] = {e.code: e for e in _tree(MalamuteError) if e.code}
"""Every numbered error, by its number."""


def from_wire(
    code: int,
    text: str,
    about: int = 0,
    ref: int = 0,
    retry_after_ms: int = 0,
    details: Mapping[str, Any] = NO_DETAILS,
) -> MalamuteError:
    """Return the error of a number and its text; a `MalamuteError` for an unknown number."""
    error = BY_CODE.get(code, MalamuteError)("")
    error.text = text if type(error).code == code else f"{text} (unknown error {code})"
    error.args = (error.text,)
    error.about, error.ref, error.retry_after, error.details = about, ref, retry_after_ms / 1000, details
    return error
