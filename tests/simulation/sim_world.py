"""The world: clients, the network, the disk and a broker, and the steps that drive them.

`run` carries out a plan and raises what was violated. When the steps are over everything is healed and the
world goes on until nothing moves any more; then nobody may be owed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from history import FORGOTTEN, PUBLISH
from sim_client import ADDRESSES, CLUB, HABITS, OFFERED, SERVICES, STREAMS, Client
from sim_clock import Wall
from sim_damage import FlawedStore
from sim_dead import base_of
from sim_disk import Disk
from sim_feeds import called
from sim_history import History, check_history, note_state
from sim_limits import check_limits
from sim_machine import EXPIRY, START, Machine, narrowed
from sim_network import Connection, cut
from sim_origin import Violation
from sim_plan import Plan, Step
from sim_restore import Backup, back_up, restore
from sim_story import Story
from sim_streams import check_counts

from malamute.client.session.session import State
from malamute.errors import TooLarge
from malamute.journal.memory import MemoryStore
from malamute.protocol.limits import Limits
from malamute.protocol.names import Kind
from malamute.server.worker import DamageFound
from malamute.store.operations import DeleteStreamMessages, Operation

ROUNDS_MAX = 300
WIDE = 100_000


class World:
    """Everything there is in a run. `log` gets what happens."""

    def __init__(self, plan: Plan, log: Callable[[str], None] | None = None) -> None:
        self.setup = plan.setup
        self.log = log
        wall = Wall(START)
        self.history = History(wall)
        store = (FlawedStore if plan.setup.flaws else MemoryStore)(counted=wall.monotonic)
        self.book = Story(
            store,
            lambda: self.disk.has_failed,
            plan.setup.queues,
            wall,
            log,
            audit=plan.setup.audit,
            unconfirmed=plan.setup.unconfirmed,
        )
        self.disk = Disk(store, self.committed)
        self.book.queues.identities_bytes = plan.setup.tight.get(
            "identities_bytes", Limits().identities_bytes
        )
        self.machine = Machine(plan.setup, self.disk, self.book, wall, self.history.killed)
        self.clients = [
            Client(place, self.book, self.history, plan.setup, lambda: self.machine.now)
            for place in range(plan.setup.clients)
        ]
        self.backup: Backup | None = None
        self._copied_at = 0
        self.helping = False
        self.broken: list[tuple[Client, Connection, bool]] = []
        """What one end has yet to find out; True if it is the broker's end."""
        for client in self.clients:
            self.connect(client)

    # Steps

    def run(self, steps: Sequence[Step]) -> None:
        """Take all steps, heal everything, and look whether anybody is owed anything."""
        for step in steps:
            self.step(step)
        self._say("everything is healed")
        self.settle()
        self.check()
        note_state(self, self.disk.store)
        check_history(self)
        self.leave()
        self.check_left()

    def step(self, step: Step) -> None:
        """Let one thing happen."""
        if step.kind in HABITS:
            self._habit(step)
        else:
            said = _STEPS[step.kind](self, step.a, step.b, step.c)
            self._say(said)
        self.history.step(self)
        check_limits(self.machine, self.machine.settings.limits)

    def _habit(self, step: Step) -> None:
        client = self.clients[step.a % len(self.clients)]
        if client.is_over:
            self.renew(client)
        if client.session.closing:
            return
        try:
            said = HABITS[step.kind](client, step.a // len(self.clients), step.b, step.c)
        except TooLarge as error:
            if client.session.sending.limits.message_bytes != self.setup.tight.get("message_bytes"):
                raise
            said = f"gives nothing: {error.text}"
        client.send()
        if said:
            self._say(f"{client.name} {said}")

    def _say(self, said: str) -> None:
        if self.log is not None and said:
            self.log(said)

    def client(self, a: int, b: int, c: int) -> str:
        """A client takes an iteration."""
        client = self.clients[a % len(self.clients)]
        if client.is_over:
            self.renew(client)
        taken = client.iterate(1 + c % 8, b if self.setup.stale else 0, late=c // 8 % 2 == 0)
        return f"{client.name} reads {taken}" if taken else ""

    def iterate(self, a: int, b: int, c: int) -> str:
        """The broker takes an iteration."""
        return "the broker takes an iteration" if self.machine.iterate(a, 1 + c % 12) else ""

    def round(self, a: int, b: int, c: int) -> str:
        """Everybody takes an iteration: what there is to do gets done, mostly."""
        for client in self.clients:
            self.client(client.place, b, c)
        self.iterate(a, b, c)
        return self.write(a, b, c)

    def write(self, a: int, b: int, c: int) -> str:
        """The disk commits some of what waits."""
        deaths = self.machine.deaths
        written = self.machine.write(1 + a % 4)
        if self.machine.deaths > deaths:
            self._dropped()
            return "the broker dies while it writes"
        return f"the disk is given {written} appends" if written else ""

    def read(self, a: int, b: int, c: int) -> str:
        """The reader answers a question."""
        return "the reader answers" if self.machine.workers.read(a) else ""

    def time(self, a: int, b: int, c: int) -> str:
        """Time goes by."""
        self.machine.now += (0.01, 0.2, 0.6)[a % 3]
        return ""

    def expire(self, a: int, b: int, c: int) -> str:
        """So much time goes by that the sessions of those who are away end."""
        self.machine.now += EXPIRY + 1
        return "a long time goes by"

    def connect_some(self, a: int, b: int, c: int) -> str:
        """A client without a connection gets one."""
        client = self.clients[a % len(self.clients)]
        if client.link.current is not None or client.is_over:
            return ""
        return self.connect(client)

    def connect(self, client: Client) -> str:
        """Connect a client."""
        if not self.setup.stale:
            client.iterate(WIDE, late=True)
        connection = Connection(client.peer, self.setup.pipe)
        self.machine.router.accept(connection)
        client.link.connect(connection)
        return f"{client.name} connects"

    def cut(self, a: int, b: int, c: int) -> str:
        """A connection breaks, and both ends know at once."""
        client = self.clients[a % len(self.clients)]
        connection = client.link.current
        if connection is None:
            return ""
        cut(connection, b % 4, c % 4)
        self.machine.router.leave(connection)
        client.link.disconnect()
        return f"the connection of {client.name} breaks"

    def half_cut(self, a: int, b: int, c: int) -> str:
        """A connection breaks, and one end does not know."""
        client = self.clients[a % len(self.clients)]
        connection = client.link.current
        if connection is None or connection.broken:
            return ""
        cut(connection, b % 4, c % 4)
        at_broker = b // 4 % 2 == 0
        if at_broker:
            client.link.disconnect()
        else:
            self.machine.router.leave(connection)
        self.broken.append((client, connection, at_broker))
        return f"the connection of {client.name} breaks, unknown to {'the broker' if at_broker else 'it'}"

    def notice(self, a: int, b: int, c: int) -> str:
        """One end finds out."""
        if not self.broken:
            return ""
        client, connection, at_broker = self.broken.pop(a % len(self.broken))
        if at_broker:
            self.machine.router.leave(connection)
        elif client.link.current is connection:
            client.link.disconnect()
        return f"the break is noticed by {'the broker' if at_broker else client.name}"

    def narrow(self, a: int, b: int, c: int) -> str:
        """A pipe takes hardly anything."""
        return self._widen(a, b % 3, "narrow")

    def widen(self, a: int, b: int, c: int) -> str:
        """A pipe takes more."""
        return self._widen(a, self.setup.pipe, "wide")

    def _widen(self, a: int, capacity: int, word: str) -> str:
        client = self.clients[a % len(self.clients)]
        if client.link.current is None:
            return ""
        client.link.current.capacity = capacity
        return f"the pipe of {client.name} is {word}"

    def fail(self, a: int, b: int, c: int) -> str:
        """The disk will fail some of the next writes."""
        self.history.disk_fails()
        disk = self.disk
        disk.is_full = c % 2 == 0
        disk.failures.extend(bool((b >> place) & 1) for place in range(1 + a % 5))
        return f"the disk will fail: {list(disk.failures)}"

    def crash(self, a: int, b: int, c: int) -> str:
        """The broker dies."""
        self.machine.die()
        self._dropped()
        return "the broker dies"

    def crash_writing(self, a: int, b: int, c: int) -> str:
        """The broker will die in one of the next writes."""
        disk = self.disk
        disk.writes_left = a % 4
        return f"the power will go after {disk.writes_left} writes of the disk"

    def stop(self, a: int, b: int, c: int) -> str:
        """The broker stops cleanly, and starts again."""
        machine = self.machine
        machine.core.close()
        machine.flush()
        while machine.workers.appends and not self.disk.failures and self.disk.writes_left is None:
            machine.write(WIDE)
            machine.iterate(0, 0)
        machine.die()
        self._dropped()
        return "the broker stops and starts"

    def _dropped(self) -> None:
        """With the broker all connections are gone."""
        self.broken.clear()
        for client in self.clients:
            connection = client.link.current
            if connection is not None:
                cut(connection, 0, self.machine.deaths % 4)
                client.link.disconnect()

    def replace(self, a: int, b: int, c: int) -> str:
        """A program dies, and another one takes its place."""
        client = self.clients[a % len(self.clients)]
        self.renew(client)
        return f"{client.name} is new"

    def usurp(self, a: int, b: int, c: int) -> str:
        """A new program takes the address of another one."""
        client = self.clients[a % len(self.clients)]
        self.renew(client, self.clients[b % len(self.clients)].address)
        return f"{client.name} is new"

    def renew(self, client: Client, address: str | None = None) -> None:
        """Put a new program at the place of one that has ended or dies now."""
        connection = client.link.current
        if connection is not None:
            cut(connection, 2, 0)
            self.machine.router.leave(connection)
        self.broken = [entry for entry in self.broken if entry[0] is not client]
        client.notes.ends()
        client.renew(address)
        self.connect(client)

    def committed(self, operations: Sequence[Operation]) -> None:
        """The disk has committed something: what it deletes in a stream is gone as if it were damaged."""
        self.book.committed(operations)
        for operation in operations:
            if isinstance(operation, DeleteStreamMessages):
                for first, last in operation.ranges:
                    self._gone(operation.stream, range(first, last + 1))

    def _gone(self, stream: str, sequences: range) -> None:
        self.book.streams.damaged.update((stream, sequence) for sequence in sequences)
        self.history.damaged(stream, sequences)

    def damage(self, a: int, b: int, c: int) -> str:
        """A chunk on the disk becomes unreadable."""
        name = STREAMS[a % len(STREAMS)]
        damaged = self.disk.damage(name, b)
        self._gone(name, damaged)
        return f"the disk loses {[*damaged]} of {name}" if damaged else ""

    def damage_block(self, a: int, b: int, c: int) -> str:
        """The broker dies, and the next one finds damaged what was in one block."""
        assert isinstance(self.disk.store, FlawedStore)
        self.machine.kill()
        found = self.disk.store.damage_block(a, b, c)
        self.book.damaged(found)
        self.history.block_damaged(self, found.messages)
        self.machine.start()
        self._dropped()
        return f"the broker dies, and the disk loses {found}"

    def damage_running(self, a: int, b: int, c: int) -> str:
        """The store finds damaged what was in one block, and tells the broker in its next iteration."""
        assert isinstance(self.disk.store, FlawedStore)
        found = self.disk.store.damage_running(a, b, c)
        self.book.stranded(found)
        stranded = [
            (*queue, sequence) for queue, sequences in found.messages.items() for sequence in sequences
        ]
        self.history.block_damaged(self, stranded)
        self.machine.workers.put(DamageFound([self.disk.store.defects[-1]._replace(stranded=found)]))
        return f"the disk loses {found}"

    def damage_state(self, a: int, b: int, c: int) -> str:
        """The broker dies, and the next one finds the state of a stream damaged."""
        assert isinstance(self.disk.store, FlawedStore)
        self.machine.kill()
        name = self.disk.store.damage_state(a)
        self.machine.start()
        self._dropped()
        return f"the broker dies, and the disk loses the state of {name!r}"

    def set_clock(self, a: int, b: int, c: int) -> str:
        """The wall clock is set."""
        return self.machine.wall.set(a)

    def back_up(self, a: int, b: int, c: int) -> str:
        """The store is copied."""
        self.backup = back_up(self.disk.store, self.book)
        self._copied_at = self.history.clock()
        return "the store is copied"

    def restore(self, a: int, b: int, c: int) -> str:
        """The store is lost, and its copy takes its place."""
        if self.backup is None:
            return ""
        self.machine.kill()
        # A start leaves out as many numbers as the clock gives in 17 minutes.
        self.machine.now += 3_600.0
        self.disk.store = restore(self.backup, self.book)
        self.history.restored(self._copied_at)
        self.machine.start()
        self._dropped()
        return "the store is lost, and its copy takes its place"

    # The end

    def settle(self) -> None:
        """Heal everything, and go on until nothing moves any more."""
        self.disk.heal()
        self.machine.widen()
        self._heal()
        self._rest()
        self._check_answers()
        self.helping = True
        self._rest()
        # A worker may hold what it has answered in vain, without a number to learn that by. Of the dead the
        # broker learns by probes, and forgets them when it is time.
        for client in self.clients:
            self.cut(client.place, 0, 0)
            self.connect(client)
        for seconds in (1.0, EXPIRY, 1.0, EXPIRY, 1.0):
            self.machine.now += seconds
            self._rest()
            self._retry()

    def _retry(self) -> None:
        """Let everybody try again what was refused for now, as long as that is of any use."""
        for _ in range(ROUNDS_MAX):
            if not any([client.look_again() for client in self.clients]):
                return
            self._rest()

    def _rest(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._round():
                return
            check_limits(self.machine, self.machine.settings.limits)
        raise Violation("the world does not come to rest")

    def _heal(self) -> None:
        while self.broken:
            self._say(self.notice(0, 0, 0))
        for connection in [c for c in self.machine.router.connections.values() if c.broken]:
            self.machine.router.leave(connection)
        for client in self.clients:
            if client.link.current is not None:
                client.link.current.capacity = WIDE
        self.setup = self.setup._replace(pipe=WIDE, stale=False)
        for client in self.clients:
            if client.is_over or client.session.closing or client.address != ADDRESSES[client.place]:
                self.renew(client)
            if client.link.current is None:
                self.connect(client)

    def _round(self) -> bool:
        busy = False
        for client in self.clients:
            busy |= bool(client.iterate(WIDE)) | self._work(client)
        busy |= self.machine.iterate(0, WIDE)
        busy |= bool(self.machine.write(WIDE))
        while self.machine.workers.read(0):
            busy = True
        busy |= self.machine.iterate(0, WIDE)
        self.history.step(self)
        return busy

    def _work(self, client: Client) -> bool:
        """Let a program do all there is to do."""
        if client.is_over:
            self.renew(client)
            return True
        if self.helping:
            self._help(client)
        done = [client.take(0, 0, 0), client.take_mail(0, 0, 0), client.take_reply(0, 0, 0)]
        done.append(client.take_request(0, 0, 0))
        done.append(client.acknowledge(0, 1, 0))
        done.append(client.reply(0, 2, 1))
        client.session.inbox.acknowledge_all()
        client.send()
        for said in done:
            if said:
                self._say(f"{client.name} {said}")
        return any(done)

    def _help(self, client: Client) -> None:
        """Let a program take all mail, and work for all services."""
        mailbox = client.session.inbox.mailbox
        if mailbox is None or mailbox.closed or mailbox.window.messages != -1:
            client.session.inbox.open_mailbox(-1, -1)
        if client.session.state is State.READY and not client.serves_all:
            client.serves_all = True
            for kind, name in self._everybodys():
                client.offers.append(
                    client.session.inbox.offer(name, [("all", "")], credit=-1, credit_bytes=-1, kind=kind)
                )

    def _everybodys(self) -> list[tuple[Kind, str]]:
        """The queues that all programs consume from in the end."""
        shared: list[tuple[Kind, str]] = [("mailbox", CLUB)] if self.setup.shared else []
        return [*(("service", service) for service in SERVICES), *shared]

    def check(self) -> None:
        """Nobody is owed anything."""
        self._check_answers()
        for client in self.clients:
            for reader in client.readers.values():
                if not reader.source.ended:
                    reader.check_complete()
            self._check_replies(client)
            self._check_trackings(client)
        queues = {("mailbox", client.mailbox) for client in self.clients}
        self.book.queues.check_done({*queues, *self._everybodys()})
        self.book.queues.feeds.check_done(self._without_room())
        self._check_broker()
        self.book.audit.check_done()
        self.book.streams.check_store(self.setup.kept_messages, ages=self.setup.age_seconds > 0)
        check_counts(self.machine.core, self.disk.store, self.book.streams.damaged)
        if self.setup.age_seconds:
            self.book.streams.check_aged(self.setup.age_seconds)
        self.book.queues.check_store(self.disk.store.recover())
        self._check_outcomes()
        self.book.keys.check(self.machine.core, exact=not (self.setup.flaws or self.setup.restores))

    def _without_room(self) -> set[tuple[str, str]]:
        """The feeds for which all queues together leave no room.

        Dead letters stay until an operator lets them go, and of mail that the disk has refused, and that
        was confirmed to nobody, the memory has the only copy.
        """
        limits, feeds = self.machine.core.queue_limits, self.machine.core.feeds.by_name
        lasting = limits.short_of_memory and not self.book.queues.all_stored
        free_bytes = limits.configured.queues_bytes - limits.bytes
        return {called(n) for n, feed in feeds.items() if feed.full and (lasting or feed.full > free_bytes)}

    def _check_answers(self) -> None:
        if self.book.reads_nothing:
            raise Violation("who read a stream that is deleted is not told", readers=self.book.reads_nothing)
        for client in self.clients:
            if client.is_over:
                raise Violation("a client is over", client=client.name, error=str(client.session.error))
            if asked := [*client.session.questions.asked()]:
                raise Violation("a question has no answer", client=client.name, asked=asked)
            if len(client.session.outbox):
                raise Violation(
                    "a command has no answer", client=client.name, count=len(client.session.outbox)
                )

    def _check_replies(self, client: Client) -> None:
        if not client.address and client.peer in self.book.ended:
            # Its session has expired, and its private mailbox with it.
            return
        if self._is_shared(client):
            return
        for asked in client.asked:
            body = asked.body
            got = any(reply.final for reply in asked.replies)
            final = self.book.queues.final_of.get(body, b"")
            # It may have died, or been dropped by an operator.
            if self.book.queues.last_end.get(final) == "acknowledged" and not got:
                raise Violation("a reply never came", client=client.name, request=body)

    def _check_broker(self) -> None:
        """What the broker still keeps is what there is to keep."""
        core, queues = self.machine.core, self.book.queues
        for table in (core.mailboxes, core.services):
            for name, queue in table.by_name.items():
                queues.dead.check_done((queue.dead_letters.kind, name), queue.dead_letters.entries)
        self.book.check_values(core)
        tracked = sum(bool(mail.wishes.tracker) for mail in queues.mail.values())
        if len(core.queue_limits.trackers._open) != tracked:
            raise Violation("trackers are open that track nothing", tracked=tracked)

    def _is_shared(self, client: Client) -> bool:
        """Whether others may have had the replies and outcomes of a client."""
        return self.setup.shared and ("mailbox", client.mailbox) in [offered[:2] for offered in OFFERED]

    def _check_trackings(self, client: Client) -> None:
        if self._is_shared(client):
            return
        ends = self.book.queues.outcome_ends
        for tracking in client.trackings:
            # A name that the program chose may be that of an outcome of the program before it.
            own = tracking.tracker.startswith(client.peer[:8].hex())
            if own and not tracking.done and ends.get((client.mailbox, tracking.tracker)) == "acknowledged":
                raise Violation("an outcome never came", client=client.name, tracker=tracking.tracker)

    def leave(self) -> None:
        """Let everybody go, until the broker has forgotten them and what nobody needs any more."""
        idle = self.setup.queues.idle_seconds
        for client in self.clients:
            self.cut(client.place, 0, 0)
        for seconds in (
            EXPIRY,
            EXPIRY,
            self.setup.queues.dedup_window_seconds,
            *([idle] * 4 if idle <= EXPIRY else ()),
        ):
            self.machine.now += seconds
            while self.machine.iterate(0, WIDE) | bool(self.machine.write(WIDE)):
                pass
        check_limits(self.machine, self.machine.settings.limits)

    def check_left(self) -> None:
        """There are the queues that are needed, in the broker and on the disk, and no others."""
        core, queues = self.machine.core, self.book.queues
        here = {(table.kind, name) for table in (core.mailboxes, core.services) for name in table.by_name}
        needed = {queue for queue in here if queues.need_for(queue)}
        idle = self.setup.queues.idle_seconds <= EXPIRY
        if here != needed and idle:
            raise Violation("an idle queue stays", queues=here - needed)
        stored = {(base_of(kind), name) for kind, name in self.disk.store.recover().queues}
        if not stored <= here and not self.disk.has_failed:
            raise Violation("a queue that is gone is on the disk", queues=stored - here)

    # What the history leaves to the world

    def may_drop(self, stream: str) -> bool:
        """Whether a stream may keep less than was published to it."""
        # What may be done twice may be there twice.
        kinds = (PUBLISH, FORGOTTEN)
        published = sum(r.kind in kinds and r.name == stream for r in self.history.records)
        return (
            published > self.setup.kept_messages
            or self.setup.age_seconds > 0
            or stream in self.history.shortened
        )

    def _check_outcomes(self) -> None:
        for client in self.clients:
            for order in client.orders:
                command = order.command
                if (
                    command is not None
                    and command.done
                    and command.error is None
                    and order.outcome is not True
                ):
                    raise Violation("a client takes for stored what was not", kind=order.kind)


_STEPS: dict[str, Callable[[World, int, int, int], str]] = {
    "client": World.client,
    "turn": World.iterate,
    "round": World.round,
    "write": World.write,
    "read": World.read,
    "time": World.time,
    "connect": World.connect_some,
    "cut": World.cut,
    "half_cut": World.half_cut,
    "notice": World.notice,
    "narrow": World.narrow,
    "widen": World.widen,
    "fail": World.fail,
    "crash": World.crash,
    "crash_writing": World.crash_writing,
    "stop": World.stop,
    "expire": World.expire,
    "replace": World.replace,
    "usurp": World.usurp,
    "damage": World.damage,
    "damage_block": World.damage_block,
    "damage_running": World.damage_running,
    "damage_state": World.damage_state,
    "set_clock": World.set_clock,
    "back_up": World.back_up,
    "restore": World.restore,
}


def run(plan: Plan, log: Callable[[str], None] | None = None) -> World:
    """Carry out a plan to its end. Raises what was violated, or what anything raised."""
    with narrowed(plan.setup):
        world = World(plan, log)
        world.run(plan.steps)
        return world
