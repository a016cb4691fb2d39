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
from malamute.journal.released import remove_released
from malamute.journal.store import Store
from malamute.matching import load_plugins
from malamute.pair.register import open_register
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
from malamute.server.release import Primary, ReleaseGate
from malamute.server.roles import Context, PairBroker
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
"""Bytes past its limit up to which a frame is answered by an ERROR; past them libzmq ends the connection."""

OTHER_FILES = 150
"""Files reserved for others than sessions: the store, listeners, and peers about to be refused."""

REPORTS_BYTES = 64 * 1024**2
"""Bytes kept of `$sys`, and of `$audit`, unless [streams] or a rule there sets a size."""

MORE_FILES = "let it open more, by LimitNOFILE= in its unit, or ulimit -Hn"

SPARE_FILES = 100
"""Files reserved for others than connections: without any, libzmq would try to accept one for ever."""

GC_THRESHOLDS = (10_000, 5, 10)
"""Thresholds of the garbage collector: new objects until a collection, and collections of a generation
until one of the next. A collection of 50,000 objects takes 10 ms of the loop."""

SWITCH_INTERVAL = 0.0005
"""Seconds that a thread may keep the lock of the interpreter. With the usual 5 ms, each step of the writer
beside a busy loop would take that long."""

LOG_PIECE = select.PIPE_BUF // 4
"""Characters of the log in one write, of 4 bytes at the most: a pipe with any room takes them."""

CRASH_HINT = "all that is stored was read since, and can be read; crash.before.txt has the report"

OTHERS_MASK = 0o077
"""Mask of the files of the broker: only the owner has rights."""

log = structlog.get_logger("malamute")


def open_store(config: Config, *, reads_all: bool = False, pair: Primary | None = None) -> Store:
    """The store that the configuration names, with all of it read first if asked for. Raises `StoreError`.

    The store of the primary of a pair tells it what changes.
    """
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
        has_log=True,
        on_commit=pair and pair.on_commit,
        on_append=pair and pair.on_append,
        timeline=pair and pair.timeline,
    )


class Configuration:
    """Configuration of a running broker, and its reload."""

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
        """Read the configuration and check it as a whole, without a change. For any thread."""
        try:
            config, changed, waiting = reloaded(self._running, self._read())
            accounts, issuers, _ = AccessFiles.read(config.access)
        except ConfigError as error:
            return error
        settings = _settings(config, self._started, self._endpoints, accounts, issuers)
        # Compared here, as the loop has no time for all users: equal tables become the same object.
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
        """Apply the configuration, except for the settings of the core."""
        before = self._running
        self._running, issuers = loaded.edge
        self._policy = loaded.settings.access
        if loaded.settings.accounts is not self._accounts:
            # No peer is checked against the issuers of before any more.
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
    pair: Primary | None = None,
) -> Loop:
    """Return a broker that listens, with its store open; `run` it. Raises `ConfigError` or `StoreError`.

    `files` is how many files the process may open, and `read` reads the configuration again. The `supervisor`
    is notified of the state. This process runs as the `user` from when it listens, if there is one. With
    `reads_all` all of the store is read first. `pair` is the part of a pair whose primary this broker is.
    """
    accounts, issuers, keys = AccessFiles.read(config.access)
    with user.acting() if user is not None else nullcontext():
        store = open_store(config, reads_all=reads_all, pair=pair)
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
        # Half of the memory stays free for new messages.
        report_size(store, config.storage.size)
        release = _release(store, config, pair)
        recovered = store.recover(records_bytes=config.core_limits.queues_memory_bytes // 2, now=clock())
        check_no_other_stores(recovered)
        settings = _settings(config, config, transport.endpoints, accounts, issuers)
        if pair is not None:
            settings = settings._replace(urls=pair.urls)
        core = Core(clock(), settings._replace(seed=secrets.randbits(64)), recovered)
        check_anybody_may_log_in(config, core.accounts)
        transport.owner_of = core.owner_of
        transport.guard.on_refusal = partial(_refused, core, clock, Reported(log))
        if authenticator is not None:
            authenticator.on_refusal = transport.guard.refuse
            authenticator.accounts = core.accounts
            authenticator.on_key_before = partial(_count_key_before, core, OldKeys(log))
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
        release=release,
    )


def _release(store: Store, config: Config, pair: Primary | None) -> ReleaseGate | None:
    """Return the release of the outcomes of a primary; None for a broker in no pair."""
    if pair is None:
        if config.storage.kind != "memory":
            remove_released(Path(config.storage.directory))
        return None
    assert isinstance(store, DiskStore), "a pair has its store on a disk"
    release = ReleaseGate(Path(config.storage.directory), partial(getattr, store, "lsn"), 0)
    pair.on_open(store, release)
    return release


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
    """Raise `ConfigError` where each listener asks for a user, and there is none."""
    mechanisms = {listener.mechanism for listener in config.listen.listeners}
    tokens = config.access.issuer and mechanisms & {"plain", "curve", "curve-before"}
    if not ("null" in mechanisms or tokens or config.access.accounts or accounts.stored.by_name):
        raise ConfigError(
            "nobody could log in: access.accounts is empty, the store has no account, and each listener asks "
            "who somebody is: expected one of these; `malamute user add NAME --accounts FILE` makes a file"
        )


def _count_key_before(core: Core, old_keys: OldKeys, user: str, address: str) -> None:
    """Count a client with the key that the broker had before, and log it now and then."""
    core.old_key_connections += 1
    old_keys.note(user, address)


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
    # A heartbeat comes half an interval after the last command, on average, and then has its timeout.
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
        buckets=config.buckets.policy,
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
        # A crash must not take back a change that a reader of the audit knows.
        policy = policy._replace(journal=True, committed=True)
    if stream not in (EVENTS, AUDIT) or policy.retention.bytes_max:
        return policy
    retention = policy.retention._replace(bytes_max=REPORTS_BYTES)
    return policy._replace(retention=retention, retention_source="default")


def data_directory(config: Config) -> str:
    """Return the data directory as text; empty for a broker in memory."""
    return "" if config.storage.kind == "memory" else str(Path(config.storage.directory).resolve())


def backup_directory(config: Config) -> str:
    """Return the parent directory of backups as text; empty for a broker in memory."""
    storage = config.storage
    return "" if storage.kind == "memory" else str((Path(storage.directory) / storage.backups).resolve())


def run(
    config: Config,
    started: Callable[[list[str]], None] = lambda endpoints: None,
    read: Callable[[], Config] | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. Raises `ConfigError` or `StoreError`.

    `started` is called with the endpoints once clients can connect, `stopping` at the end. `read`
    reads the configuration again, on SIGHUP and for an operator. At the end the process ignores these
    signals, since it is to end, too.
    """
    configure_logs(config.log)
    # The data, its backups and all other files of this process are its owner's alone.
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
    if config.pair.name:
        _run_in_pair(config, files, read, signalled, started, stopping)
        return
    with _signals(signalled.while_starting), closing(_crash_report(config, user)) as crash:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(config.listen.io_threads)
        context.set(zmq.MAX_SOCKETS, 1024)
        try:
            again = read and (lambda: _within_files(read(), files))
            supervisor = Supervisor.of(os.environ)
            loop = open_broker(config, context, files, again, supervisor, user, reads_all=bool(crash.found))
        except BaseException:
            # A socket of a half open broker may be open still, and `term` would wait for it.
            context.destroy(linger=0)
            raise
        if crash.found:
            log.warning("the previous process has crashed", report=crash.found, hint=CRASH_HINT)
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
            # A second signal while the process ends asks for nothing more.
            for number in signalled.while_serving:
                signal.signal(number, signal.SIG_IGN)


def _run_in_pair(
    config: Config,
    files: int,
    read: Callable[[], Config] | None,
    signalled: Signalled,
    started: Callable[[list[str]], None],
    stopping: Callable[[], None],
) -> None:
    """Run a broker of a pair, from role to role."""
    again = read and (lambda: _within_files(read(), files))
    with closing(_crash_report(config, None)) as crash:

        def open_loop(context: Context, pair: Primary, supervisor: Supervisor) -> Loop:
            loop = open_broker(
                config, context, files, again, supervisor, reads_all=bool(crash.found), pair=pair
            )
            crash.acted_upon()
            return loop

        register = open_register(config.pair.register)
        broker = PairBroker(config, register, open_loop)
        signalled.serve(broker)
        with _signals(signalled.while_serving), quiet_collector():
            broker.run(started, stopping)
            log.info("stopped")
            for number in signalled.while_serving:
                signal.signal(number, signal.SIG_IGN)


def _crash_report(config: Config, user: ProcessUser | None) -> CrashReport:
    directory = None if config.storage.kind == "memory" else Path(config.storage.directory)
    with user.acting() if user is not None else nullcontext():
        return CrashReport(directory)


Handler = Callable[[int, FrameType | None], None]


class Signalled:
    """Requests to a broker by signals.

    A handler may interrupt anything, such as a line of the log. So it notes the request, wakes the loop, and
    does no more: a line written there would wait for the one that it has interrupted.
    """

    def __init__(self) -> None:
        self.stop_signal = ""
        """First signal that asked for a shutdown."""
        self._loop: Loop | PairBroker | None = None
        self._reloading = False
        # A terminal that hangs up sends SIGHUP, too: who closes the window wants no broker without one.
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty()

    @property
    def while_starting(self) -> Mapping[int, Handler]:
        """Handlers until the broker serves. A request to stop ends the process: nothing is promised yet."""
        return {} if self._on_terminal else {signal.SIGHUP: self._reload}

    @property
    def while_serving(self) -> Mapping[int, Handler]:
        """Handlers of a broker that serves, until it has ended."""
        stopping: dict[int, Handler] = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop}
        return {**stopping, signal.SIGHUP: self._stop if self._on_terminal else self._reload}

    def serve(self, loop: Loop | PairBroker) -> None:
        """Note the loop that is about to serve, and apply requests of before."""
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
    """Stream for the log that neither fails nor waits: without a log, the broker continues.

    A disk may be full, a terminal closed or halted by Control-S, a pipe without a reader. Lost lines are
    counted, and the next line that is written has the count as `lines_lost`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lines_lost = 0
        self._stream = stream
        self._failed = False
        """Whether a part of this line is lost."""
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
        """Add the count of lost lines to an event, as a processor of structlog."""
        return {**event, "lines_lost": self.lines_lost} if self.lines_lost else event

    def _try(self, action: Callable[[], Any]) -> None:
        if self._failed:  # the rest of a lost line is lost, too
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
    """Report an error of the store, sampled: clients may cause one as often as they like."""
    if count := sampler.count(str(error.code)):
        log.error("not stored", error=str(error), code=error.code, hint=error.hint, count=count)


def _on_notice(notice: Notice) -> None:
    report = log.error if notice.event == FAULT else log.info if notice.event == CONFIGURED else log.warning
    report(notice.event, **notice.details)


def _within_files(config: Config, files: int) -> Config:
    """Allow no more sessions than there can be connections: the one too many gets the reason.

    Without a file for that connection libzmq could not refuse it, and would try to accept it for ever.

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
    # A default that cannot be reached is no matter for a warning at each start.
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
    """Install handlers for a block. Signals that are ignored at the end stay ignored."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Exclude present objects from garbage collection during a block, and collect less often."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
