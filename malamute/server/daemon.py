"""The process: a broker made from its configuration, with signals, logs and garbage collector."""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

import structlog
import zmq
from structlog.typing import EventDict

from malamute.access import Accounts, Policy
from malamute.access.token import Issuers
from malamute.config import Config, LogConfig
from malamute.config.access_files import AccessFiles
from malamute.config.derived import CONNECTIONS
from malamute.config.options import options_in_force
from malamute.config.reload import reloaded
from malamute.core.broker import Core
from malamute.core.configuration import CONFIGURED
from malamute.core.identity.accounts import AccountDirectory
from malamute.core.iteration.effects import Notice
from malamute.core.iteration.faults import FAULT
from malamute.core.iteration.settings import ConfigurationLoaded, Settings
from malamute.core.reports.events import EVENTS
from malamute.door.addresses import Gateways
from malamute.door.files import raise_file_limit
from malamute.door.sampling import Sampler
from malamute.errors import ConfigError, MalamuteError, StoreError
from malamute.journal.directory import PAGE, check_private
from malamute.journal.disk import DiskStore
from malamute.journal.memory import MemoryStore
from malamute.journal.store import Store
from malamute.matching import load_plugins
from malamute.protocol.names import AUDIT
from malamute.server.authentication import Authenticator, OldKeys, Reported
from malamute.server.clock import Clock, counted
from malamute.server.crashes import CrashReport
from malamute.server.edge import RefusedConnection
from malamute.server.flow import Windows
from malamute.server.guard import Rules
from malamute.server.intake import Allowance
from malamute.server.loop import Loop, socket_options
from malamute.server.privileges import ProcessUser
from malamute.server.stalls import FOR_EVER, Patience
from malamute.server.supervisor import Supervisor
from malamute.server.transport import Transport
from malamute.server.worker import no_configuration
from malamute.store.operations import Recovered
from malamute.store.policies import StreamPolicy
from malamute.store.tables import STORES
from malamute.version import __version__

SOFTWARE = f"malamute {__version__}"

FRAME_SLACK_BYTES = 1 << 20
"""How far past its limit a frame is still answered by an ERROR; libzmq ends the connection beyond."""

OTHER_FILES = 150
"""Files that are kept for others than sessions: the store, listeners, and peers about to be refused."""

REPORTS_BYTES = 64 * 1024**2
"""Bytes kept of `$sys`, and of `$audit`, unless [streams] or a rule there sets a size."""

MORE_FILES = "let it open more, by LimitNOFILE= in its unit, or ulimit -Hn"

SPARE_FILES = 100
"""Files that are kept for others than connections: without any, libzmq would try to accept one for ever."""

GC_THRESHOLDS = (10_000, 5, 10)
"""Objects that may be gathered between two looks of the garbage collector, and how many of those looks there
are until it looks at what has survived one. A look at 50,000 objects holds everybody up for 10 ms."""

SWITCH_INTERVAL = 0.0005
"""Seconds that a thread may keep the interpreter from the others. With the usual 5 ms, each of the writer's
steps beside a busy loop would take that long."""

LOG_PIECE = select.PIPE_BUF // 4
"""Characters of the log that are written at once, of 4 bytes at the most: a pipe with any room takes them."""

CRASH_HINT = "all that is stored was read since, and can be read; crash.before.txt has the report"

OTHERS_MASK = 0o077
"""What nobody but the owner may do with the files that the broker makes."""

log = structlog.get_logger("malamute")


def open_store(config: Config, *, reads_all: bool = False) -> Store:
    """The store that the configuration names, with all of it read first if asked for. Raises `StoreError`."""
    storage = config.storage
    budget = int(storage.size * storage.streams_share)
    if storage.kind == "memory":
        return MemoryStore(
            size=storage.size,
            streams_budget=budget,
            broker_id=os.urandom(16),
            counted=counted,
        )
    return DiskStore.open(
        storage.directory,
        size=storage.size,
        preallocate=storage.preallocate,
        streams_budget=budget,
        counted=counted,
        reads_all=reads_all,
    )


class Configuration:
    """The configuration that a broker goes by, and how it is read again."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        endpoints: list[str],
        policy: Policy,
        accounts: Accounts,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._started = self._running = config
        self._policy = policy
        self._accounts = accounts
        self._authenticator = authenticator
        self._read = read
        self._endpoints = endpoints

    def load(self) -> ConfigurationLoaded | MalamuteError:
        """Read it and check it as a whole. Any thread may call this: it changes nothing."""
        try:
            config, changed, waiting = reloaded(self._running, self._read())
            accounts, issuers, _ = AccessFiles.read(config.access)
        except ConfigError as error:
            return error
        settings = _settings(config, self._started, self._endpoints, accounts, issuers)
        # To compare all users is not for the loop: there what is equal is the same object.
        if settings.access == self._policy:
            settings = settings._replace(access=self._policy)
        if settings.accounts == self._accounts:
            settings = settings._replace(accounts=self._accounts)
        files = {
            "access.accounts": settings.accounts is not self._accounts,
            "access.issuer": settings.access.keys != self._policy.keys,
        }
        changed += tuple(name for name, is_other in files.items() if is_other and name not in changed)
        return ConfigurationLoaded(settings, changed, waiting, (config, issuers))

    def apply(self, loaded: ConfigurationLoaded) -> None:
        """Go by it, in all that the core does not know of."""
        before = self._running
        self._running, issuers = loaded.edge
        self._policy = loaded.settings.access
        if loaded.settings.accounts is not self._accounts:
            # Nobody asks those of before any more.
            threading.Thread(target=self._accounts.clear, name="malamute-accounts", daemon=True).start()
            self._accounts = loaded.settings.accounts
        if self._authenticator is not None:
            self._authenticator.bearers.issuers = issuers
        if self._running.log != before.log:
            configure_logs(self._running.log)


def open_broker(
    config: Config,
    context: zmq.Context[zmq.Socket[bytes]],
    files: int = sys.maxsize,
    read: Callable[[], Config] | None = None,
    supervisor: Supervisor | None = None,
    user: ProcessUser | None = None,
    *,
    reads_all: bool = False,
) -> Loop:
    """A broker that listens and has its store open; `run` it. Raises `ConfigError` or `StoreError`.

    `files` is how many files the process may open, and `read` reads the configuration again. The `supervisor`
    learns how it goes. This process runs as the `user` from when it listens, if there is one. With
    `reads_all` all that is stored is read first.
    """
    accounts, issuers, keys = AccessFiles.read(config.access)
    with user.acting() if user is not None else nullcontext():
        store = open_store(config, reads_all=reads_all)
    listeners = config.listen.listeners
    asking = any(listener.mechanism != "null" for listener in listeners)
    gateways = Gateways(config.listen.gateways)
    authenticator = Authenticator(context, accounts, issuers=issuers, gateways=gateways) if asking else None
    transport = _open_transport(config, context, files, authenticator)
    try:
        for mechanism, endpoint in listeners:
            bound = transport.bind(
                endpoint, int(config.listen.ipc_mode, 8), mechanism, keys.get(mechanism, "").encode()
            )
            if user is not None and bound.startswith("ipc://") and not bound.startswith("ipc://@"):
                user.own(Path(bound.removeprefix("ipc://")))
        if user is not None:
            user.become()
        clock = Clock()
        # Half of the memory stays free for what comes.
        report_size(store, config.storage.size)
        recovered = store.recover(records_bytes=config.core_limits.queues_memory_bytes // 2, now=clock())
        check_no_other_stores(recovered)
        settings = _settings(config, config, transport.endpoints, accounts, issuers)
        core = Core(clock(), settings._replace(seed=secrets.randbits(64)), recovered)
        check_anybody_may_log_in(config, core.accounts)
        transport.owner_of = core.owner_of
        transport.guard.on_refusal = partial(_refused, core, clock, Reported(log))
        if authenticator is not None:
            authenticator.on_refusal = transport.guard.refuse
            authenticator.accounts = core.accounts
            authenticator.on_key_before = OldKeys(log).note
    except BaseException:
        transport.close(0)
        store.close()
        raise
    configuration = (
        Configuration(config, read, transport.endpoints, settings.access, accounts, authenticator)
        if read
        else None
    )
    return Loop(
        core,
        store,
        [transport],
        clock=clock,
        on_store_error=partial(_report_store_error, Sampler()),
        on_notice=_on_notice,
        load=configuration.load if configuration else no_configuration,
        on_loaded=configuration.apply if configuration else lambda loaded: None,
        supervisor=supervisor,
    )


def check_no_other_stores(recovered: Recovered) -> None:
    """Raise `StoreError` for a data directory that an earlier version had further stores for."""
    names = [name for (name,), ident in recovered.table(STORES).items() if ident]
    if names:
        raise StoreError(
            f"streams of this data directory are in stores elsewhere: {', '.join(sorted(names))}; a broker "
            "has one data directory now: export them with the version before (`malamute journal export`), "
            "or run a second broker on the directory of each; then have the version before forget each, for "
            "example `malamute journal forget-store NAME --data DIRECTORY`"
        )


def report_size(store: Store, configured: int) -> None:
    """Report a size that was lowered: the file stays as large as it is."""
    size = store.status().size
    # A size is rounded up to whole pages.
    if size - configured >= PAGE:
        log.warning(
            "the size of the store was lowered: a store never shrinks, and stays as large as it is",
            configured=configured,
            size=size,
        )


def check_anybody_may_log_in(config: Config, accounts: AccountDirectory) -> None:
    """Raise `ConfigError` where each listener asks for a user, and nothing says which users there are."""
    mechanisms = {listener.mechanism for listener in config.listen.listeners}
    tokens = config.access.issuer and mechanisms & {"plain", "curve", "curve-before"}
    if not ("null" in mechanisms or tokens or config.access.accounts or accounts.stored.by_name):
        raise ConfigError(
            "nobody could log in: access.accounts is empty, the store has no account, and each listener asks "
            "who somebody is: expected one of these; `malamute user add NAME --accounts FILE` makes a file"
        )


def _refused(core: Core, clock: Clock, report: Reported, refusal: RefusedConnection) -> None:
    """Report a connection that was refused, in the log and to the core."""
    report(refusal)
    core.connection_refused(refusal.address, refusal.mechanism, refusal.claimed, refusal.reason, clock())


def _open_transport(
    config: Config,
    context: zmq.Context[zmq.Socket[bytes]],
    files: int,
    authenticator: Authenticator | None = None,
) -> Transport:
    listen, limits = config.listen, config.connection_limits
    options = socket_options(
        heartbeat_ms=int(listen.heartbeat_interval * 1000),
        heartbeat_timeout_ms=int(listen.heartbeat_timeout * 1000),
        send_queue=limits.send_queue,
        receive_queue=limits.receive_queue,
        frame_bytes_max=config.limits.message_bytes + FRAME_SLACK_BYTES,
    )
    windows = Windows(limits.send_bytes, limits.send_bytes_all)
    open_max = max(files - SPARE_FILES, 1)
    gateways = Gateways(listen.gateways)
    rules = Rules(limits.hello_timeout, limits.hello_queue, open_max, limits.hello_failures, gateways)
    # A heartbeat comes half an interval after the last word, on average, and then has its time.
    interval, timeout = listen.heartbeat_interval, listen.heartbeat_timeout
    patience = Patience(interval / 2 + timeout, timeout) if interval else FOR_EVER
    allowance = Allowance(limits.receive_bytes, limits.receive_bytes_all)
    return Transport(context, options, windows, rules, patience, allowance, authenticator=authenticator)


def _settings(
    config: Config, started: Config, endpoints: list[str], accounts: Accounts, issuers: Issuers
) -> Settings:
    return Settings(
        limits=config.core_limits,
        session_expiry=config.session.expiry,
        probe_interval=config.connection_limits.probe_interval,
        streams=partial(_stream_policy, config),
        unjournaled=not all(
            [config.streams.journal, *(rule.journal is not False for rule in config.streams.rule)]
        ),
        queues=config.queues.policy,
        lifecycle_events=config.events.lifecycle,
        settled_events=config.events.settled,
        audit=config.events.audit,
        access=config.access.policy(issuers.keys),
        accounts=accounts,
        software=SOFTWARE,
        backups=backup_directory(config),
        options=options_in_force(config, started),
        facts={
            "endpoints": endpoints,
            "storage": config.storage.kind,
            "directory": data_directory(config),
            "pid": os.getpid(),
        },
    )


def _stream_policy(config: Config, stream: str) -> StreamPolicy:
    policy = config.streams.policy(stream)
    if stream == AUDIT:
        # Nobody is to read of a change that a crash may take back.
        policy = policy._replace(journal=True, committed=True)
    if stream not in (EVENTS, AUDIT) or policy.retention.bytes_max:
        return policy
    retention = policy.retention._replace(bytes_max=REPORTS_BYTES)
    return policy._replace(retention=retention, retention_source="default")


def data_directory(config: Config) -> str:
    """Where the broker keeps its data, in words."""
    return "" if config.storage.kind == "memory" else str(Path(config.storage.directory).resolve())


def backup_directory(config: Config) -> str:
    """Below which directory backups are made, in words."""
    storage = config.storage
    return "" if storage.kind == "memory" else str((Path(storage.directory) / storage.backups).resolve())


def run(
    config: Config,
    started: Callable[[list[str]], None] = lambda endpoints: None,
    read: Callable[[], Config] | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. Raises `ConfigError` or `StoreError`.

    `started` is called with the endpoints once clients can connect, `stopping` when the end begins. `read`
    reads the configuration again, on SIGHUP and when an operator asks for it. At the end the process ignores
    these signals: it is to end, too.
    """
    configure_logs(config.log)
    # The data, its backups and whatever else this process makes are its owner's alone.
    os.umask(OTHERS_MASK)
    user = ProcessUser.find(config.broker.user) if config.broker.user else None
    if config.storage.kind != "memory":
        check_private(Path(config.storage.directory))
        if user is not None:
            user.prepare(Path(config.storage.directory))
    files = raise_file_limit()
    config = _within_files(config, files)
    sys.setswitchinterval(SWITCH_INTERVAL)
    load_plugins()
    signalled = Signalled()
    with _signals(signalled.while_starting), closing(_crash_report(config, user)) as crash:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(config.listen.io_threads)
        context.set(zmq.MAX_SOCKETS, 1024)
        try:
            again = read and (lambda: _within_files(read(), files))
            supervisor = Supervisor.of(os.environ)
            loop = open_broker(config, context, files, again, supervisor, user, reads_all=bool(crash.found))
        except BaseException:
            # Of what was half open somebody may hold a socket still, for which `term` would wait.
            context.destroy(linger=0)
            raise
        if crash.found:
            log.warning("the process before has crashed", report=crash.found, hint=CRASH_HINT)
        crash.acted_upon()
        signalled.serve(loop)
        with _signals(signalled.while_serving):
            endpoints = loop.endpoints
            with quiet_collector():
                log.info("started", endpoints=endpoints, directory=data_directory(config), pid=os.getpid())
                started(endpoints)

                def stop() -> None:
                    log.info("stopping", signal=signalled.stop_signal)
                    stopping()

                loop.run(stop)
            context.term()
            log.info("stopped")
            # Who asks once more while the process ends has what was asked for.
            for number in signalled.while_serving:
                signal.signal(number, signal.SIG_IGN)


def _crash_report(config: Config, user: ProcessUser | None) -> CrashReport:
    directory = None if config.storage.kind == "memory" else Path(config.storage.directory)
    with user.acting() if user is not None else nullcontext():
        return CrashReport(directory)


Handler = Callable[[int, FrameType | None], None]


class Signalled:
    """What signals have asked of a broker.

    A handler runs in the midst of anything, such as a line of the log. So it notes what is asked, wakes the
    loop, and does no more: to write a line there would wait for the one that it has interrupted.
    """

    def __init__(self) -> None:
        self.stop_signal = ""
        """The first that has asked it to stop."""
        self._loop: Loop | None = None
        self._reloading = False
        # A terminal that hangs up sends it, too: a user who closes the window wants no broker without one.
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty()

    @property
    def while_starting(self) -> Mapping[int, Handler]:
        """The handlers until it serves. What asks it to stop ends it at once: it has promised nothing yet."""
        return {} if self._on_terminal else {signal.SIGHUP: self._reload}

    @property
    def while_serving(self) -> Mapping[int, Handler]:
        """The handlers from then until it has ended."""
        stopping: dict[int, Handler] = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop}
        return {**stopping, signal.SIGHUP: self._stop if self._on_terminal else self._reload}

    def serve(self, loop: Loop) -> None:
        """It is about to serve: have it do what was asked while it started."""
        self._loop = loop
        if self._reloading:
            loop.reload()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = self.stop_signal or signal.Signals(number).name
        if self._loop is not None:
            self._loop.stop()

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self._reloading = True
        if self._loop is not None:
            self._loop.reload()


class LogStream:
    """A stream for the log that neither fails nor waits: whatever becomes of the log, the broker continues.

    A disk may be full, a terminal closed or halted by Control-S, and what reads a pipe may read no more. What
    could not be written is counted, and the next line that is written has the count as `lines_lost`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lines_lost = 0
        self._stream = stream
        self._failed = False
        """Whether something of this line is lost."""
        self._room = select.poll()
        self._is_file = False
        with suppress(OSError, ValueError):
            self._room.register(stream.fileno(), select.POLLOUT)
            self._is_file = True

    def write(self, text: str) -> None:
        """Write a part of a line."""
        for first in range(0, len(text), LOG_PIECE):
            self._try(partial(self._write, text[first : first + LOG_PIECE]))

    def _write(self, text: str) -> None:
        if self._is_file and not self._room.poll(0):
            raise BlockingIOError
        self._stream.write(text)
        self._stream.flush()

    def flush(self) -> None:
        """End a line."""
        self._try(self._stream.flush)
        self.lines_lost = self.lines_lost + 1 if self._failed else 0
        self._failed = False

    def note_lost(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """Add what was lost to an event, as a processor of structlog."""
        return {**event, "lines_lost": self.lines_lost} if self.lines_lost else event

    def _try(self, action: Callable[[], Any]) -> None:
        if self._failed:  # so is the rest of the line
            return
        try:
            action()
        except (OSError, ValueError):  # ValueError: it was closed
            self._failed = True


def configure_logs(config: LogConfig) -> None:
    """Write logs to standard error: for people on a terminal, as JSON elsewhere."""
    stream = LogStream(sys.stderr)
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            stream.note_lost,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.dict_tracebacks]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(config.level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stream)),
    )


def _report_store_error(sampler: Sampler, error: MalamuteError) -> None:
    """Report what was not stored. A full store may be asked for room as often as clients like."""
    if count := sampler.count(str(error.code)):
        log.error("not stored", error=str(error), code=error.code, hint=error.hint, count=count)


def _on_notice(notice: Notice) -> None:
    report = log.error if notice.event == FAULT else log.info if notice.event == CONFIGURED else log.warning
    report(notice.event, **notice.details)


def _within_files(config: Config, files: int) -> Config:
    """Allow no more sessions than there can be connections: the one too many then learns why.

    Without a file for it libzmq could not even refuse it, and would try again and again.

    Raises:
        ConfigError: there is no file left for any of them.

    """
    sessions = files - OTHER_FILES
    if sessions < 1:
        raise ConfigError(
            f"the broker may open {files} files, and needs more than {OTHER_FILES}: {MORE_FILES}"
        )
    connections = config.listen.connections
    if connections <= sessions:
        return config
    # Nobody asked for the default: that there can be fewer is no matter for a warning at each start.
    report = log.warning if connections != CONNECTIONS else log.debug
    report(
        "fewer connections than configured",
        connections=sessions,
        configured=connections,
        files=files,
        hint=MORE_FILES,
    )
    return replace(
        config,
        listen=replace(config.listen, connections=sessions),
        sources={**config.sources, "listen.connections": "system"},
    )


@contextmanager
def _signals(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Have these handlers for a while. Those that are ignored at the end stay so."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep what is there for good out of the collector's sight, and let it look less often."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
