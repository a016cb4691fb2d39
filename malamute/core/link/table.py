"""All links of a broker: rules and positions, the messages that come by them, and reports of runners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from malamute.core.feed.table import Feeds
from malamute.core.iteration.metrics import Rate
from malamute.core.iteration.recovery import Recovery
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.link.rule import LinkPosition, LinkRule
from malamute.core.link.ways import circle, in_words, newest, one_of_each, prolonged
from malamute.errors import AccessRefused, InvalidValue, MalamuteError, NotAsExpected, NotFound, TooMany
from malamute.protocol.admin import LinkReport, LinkRow, LinkVerdict, Way
from malamute.protocol.limits import HOPS_MAX, LINKS_MAX, WAYS_MAX
from malamute.protocol.messages import Forward
from malamute.protocol.names import Place
from malamute.protocol.position import StorePosition
from malamute.store.operations import DeleteValue, PutValue, Recovered, Stranded
from malamute.store.tables import LINK_POSITIONS, LINKS

if TYPE_CHECKING:
    from malamute.core.session.session import Session
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

LOST = "its position was in a part of the store that is damaged"
"""Why a link is stopped that has no position."""

WAITING, RUNNING, AWAY = "waiting", "running", "away"


class LinkProgress:
    """The state of a link since the broker started."""

    def __init__(self) -> None:
        self.taken = 0
        self.rate = Rate()
        self.gaps: Counter[str] = Counter()
        self.report: LinkReport | None = None
        self.reporter: Session | None = None
        """The session of the report, which counts as long as that is open."""
        self.told = WAITING


class Links:
    """All links, by their names."""

    def __init__(
        self, streams: Streams, feeds: Feeds, recovery: Recovery, confirm: Callable[[LinkRule], None]
    ) -> None:
        """`confirm` raises if the setter of a link has no right to it any more."""
        self.effects = streams.effects
        self.streams = streams
        self.feeds = feeds
        self.recovery = recovery
        self._confirm = confirm
        self.rules: StoredValues[str, LinkRule] = StoredValues(self.effects.stage)
        self.positions: StoredValues[str, LinkPosition] = StoredValues(self.effects.stage)
        self.progress: dict[str, LinkProgress] = {}

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Restore the stored links, each at its position."""
        positions = {name: LinkPosition(*value) for (name,), value in recovered.table(LINK_POSITIONS).items()}
        for (name,), value in recovered.table(LINKS).items():
            recovery.take_up("link", name, self._restore, name, value, positions.get(name))

    def _restore(self, name: str, value: bytes, position: LinkPosition | None) -> None:
        rule = LinkRule.parse(value)
        if position is None or position.generation != rule.generation:
            # Any position could repeat messages, or leave some out.
            position = LinkPosition(rule.generation)
            rule = rule._replace(stopped=rule.stopped or LOST)
        self.rules[name], self.positions[name] = rule, position
        self.streams.keep(rule.into).feeds += 1
        self.progress[name] = LinkProgress()

    def store_again(self, stranded: Stranded) -> None:
        """Store once more what the store has lost: rules and positions."""
        for (name,) in stranded.keys(LINKS):
            if name in self.rules:
                self.rules.rely_on(name)
                self.effects.stage.store(PutValue(LINKS, (name,), self.rules[name].packed()))
        for (name,) in stranded.keys(LINK_POSITIONS):
            if name in self.positions:
                self._put_position(name, self.positions[name])

    # Changes

    def found(self, name: str, into: str = "", generation: int = 0) -> LinkRule:
        """Return the rule of a link, with this target and generation if they are named.

        Raises:
            NotFound: there is no such link.
            NotAsExpected: it is of another generation.
        """
        rule = self.rules.get(name)
        if rule is None or into not in ("", rule.into):
            raise NotFound(f"there is no link {name!r}{f' into the stream {into!r}' * bool(into)}")
        if generation not in (0, rule.generation):
            raise NotAsExpected(f"link {name!r} is of the generation {rule.generation}, not of {generation}")
        return rule

    def check(self, name: str, rule: LinkRule) -> None:
        """Raise the error of a link that cannot be set: `InvalidValue` or `TooMany`."""
        before = self.rules.get(name)
        if before is None and len(self.rules) >= LINKS_MAX:
            raise TooMany(f"too many links: expected at most {LINKS_MAX}")
        if before is not None and before.into != rule.into:
            raise InvalidValue(
                f"link {name!r} goes into the stream {before.into!r}: remove it first, or choose another name"
            )
        if before is not None and not rule.start and before.stream != rule.stream:
            raise InvalidValue(
                f"link {name!r} stands in the stream {before.stream!r}: expected a 'start' in "
                f"{rule.stream!r}, such as 'first'"
            )
        if not self.streams.policy(rule.into).journal:
            raise InvalidValue(f"stream {rule.into!r} has no journal: a link needs one")

    def set(self, name: str, rule: LinkRule) -> LinkRule:
        """Make or change a link, stored with this iteration. Returns its rule, with its generation.

        Without a `start` an existing one goes on at its position.
        """
        before, at = self.rules.get(name), ""
        stream = self.streams.get(rule.into, rule.setter.user)
        if before is not None and not rule.start:
            rule, at = rule._replace(start=before.start), self.positions[name].at
        generation = max(self.effects.time_ns, before.generation + 1 if before else 0)
        rule = rule._replace(generation=generation, start=rule.start or "new")
        self._put_rule(name, rule)
        self._put_position(name, LinkPosition(generation, at))
        if before is None:
            self._hold(name, stream)
        self.recovery.settled("link", name)
        self.report("set" if before else "created", name)
        return rule

    def _hold(self, name: str, stream: Stream) -> None:
        """Keep the stream of a new link, unless the disk refuses the link."""
        stream.feeds += 1
        self.progress[name] = LinkProgress()

        def stored(error: MalamuteError | None) -> None:
            if error is not None and name not in self.rules:
                self._release(name, stream)

        self.effects.stage.when_stored(stored)

    def _release(self, name: str, stream: Stream) -> None:
        stream.feeds -= 1
        self.progress.pop(name, None)
        self.streams.drop_untouched(stream)

    def pause(self, name: str) -> LinkRule:
        """Pause a link where it is."""
        rule = self.rules[name]._replace(paused=True)
        self._put_rule(name, rule)
        self.report("paused", name)
        return rule

    def resume(self, name: str) -> LinkRule:
        """Resume a paused link where it is, as the newest of all: it may close a circle now."""
        rule = self.rules[name]
        generation = max(self.effects.time_ns, rule.generation + 1)
        rule = rule._replace(paused=False, generation=generation)
        self._put_rule(name, rule)
        self._put_position(name, LinkPosition(generation, self.positions[name].at))
        self.report("resumed", name)
        return rule

    def stop(self, name: str, reason: str) -> LinkRule:
        """Stop a link until it is set again."""
        rule = self.rules[name]._replace(stopped=reason)
        self._put_rule(name, rule)
        self.report("stopped", name, user=rule.setter.user, reason=reason)
        self.effects.notice("a link is stopped: set it again", link=name, into=rule.into, reason=reason)
        return rule

    def remove(self, name: str) -> None:
        """Remove a link, stored with this iteration; its messages stay."""
        rule = self.rules[name]
        self.rules.rely_on(name)
        self.positions.rely_on(name)
        self.rules.put(name, None)
        self.positions.put(name, None)
        for table in (LINKS, LINK_POSITIONS):
            self.effects.stage.store_bound(DeleteValue(table, (name,)))
        stream = self.streams.by_name[rule.into]

        def stored(error: MalamuteError | None) -> None:
            if error is None and name not in self.rules:
                self._release(name, stream)

        self.effects.stage.when_stored(stored)
        self.report("removed", name)

    def advance(self, name: str, after: str, upto: str, gap: str) -> None:
        """Move a link forward without a message, over a `gap` for this reason if there is one.

        Raises:
            NotAsExpected: it does not stand there.
            InvalidValue: the new position is none, or in another broker's store.
        """
        self._check_move(name, after, upto)
        self._put_position(name, LinkPosition(self.rules[name].generation, upto))
        if gap:
            self.progress[name].gaps[gap] += 1
            self.report("gap", name, after=after, upto=upto, reason=gap)

    def _put_rule(self, name: str, rule: LinkRule) -> None:
        self.rules.rely_on(name)
        self.rules.put(name, rule)
        self.effects.stage.store(PutValue(LINKS, (name,), rule.packed()))

    def _put_position(self, name: str, position: LinkPosition) -> None:
        # If the disk refuses an earlier one, messages before this one are missing.
        self.positions.rely_on(name)
        self.positions.put(name, position)
        self.effects.stage.store(PutValue(LINK_POSITIONS, (name,), list(position)))

    def report(self, what: str, name: str, **details: Any) -> None:
        """Report an event of a link."""
        self.effects.event(f"link.{what}.{name}", **details)

    def of(self, stream: str) -> list[str]:
        """Return the links into a stream, in order."""
        return sorted(name for name, rule in self.rules.items() if rule.into == stream)

    def review(self, name: str) -> None:
        """Stop a link if the rights of the user who has set it have ended."""
        rule = self.rules.get(name)
        if rule is None or rule.stopped:
            return
        try:
            self._confirm(rule)
        except AccessRefused as error:
            self.stop(name, error.text)

    # Messages

    def check_forward(self, message: Forward) -> None:
        """Check that messages of a runner are the next ones of their link.

        Raises:
            NotFound: there is no such link.
            NotAsExpected: it is of another generation, is elsewhere, or carries nothing now.
            InvalidValue: the new position is not behind the present one.
        """
        rule = self.found(message.link, message.stream, message.generation)
        if rule.rests:
            raise NotAsExpected(f"link {message.link!r} is {rule.rests}: expected one that is running")
        self._check_move(message.link, message.after, message.upto)

    def forward(self, message: Forward) -> int:
        """Take checked messages of a runner. Returns the sequence of the first.

        The position is stored in the commit that stores the messages.
        """
        stream, progress = self.streams.by_name[message.stream], self.progress[message.link]
        stream.flush()
        first = stream.progress.next
        self._put_position(message.link, LinkPosition(message.generation, message.upto))
        stream.forward(message.senders, message.subjects, message.records)
        progress.taken += len(message.records)
        progress.rate.add(len(message.records), self.effects.now)
        return first

    def _check_move(self, name: str, after: str, upto: str) -> None:
        at = self.positions[name].at
        if after != at:
            raise NotAsExpected(f"link {name!r} stands at {at or 'no position'}, not at {after or 'none'}")
        begin, end = StorePosition.parse(at), StorePosition.parse(upto)
        if end is None:
            raise InvalidValue(f"invalid position {upto!r}: expected N@STORE")
        if begin is not None and begin.broker != end.broker:
            raise InvalidValue(
                f"position {upto} is of another broker than that of the link {name!r}, {begin.broker}: set "
                "the link again with a start"
            )
        if begin is not None and begin.store == end.store and begin.sequence >= end.sequence:
            raise InvalidValue(f"position {upto} is not behind {at}: expected a later one")

    # Reports

    def told(self, session: Session, report: LinkReport) -> LinkVerdict:
        """Take the report of a runner in its session, and tell it whether it may carry on.

        Raises `NotFound`. A link that has closed a circle is stopped.
        """
        name = report.link
        rule = self.found(name, report.stream)
        if report.generation == rule.generation and not rule.rests:
            progress = self.progress[name]
            progress.report, progress.reporter = report, session
            self._look_for_circles(name, rule)
            self._note_state(name)
        rule, position = self.rules[name], self.positions[name]
        return LinkVerdict(
            generation=rule.generation,
            state=rule.rests or RUNNING,
            reason=rule.stopped,
            position=position.at,
        )

    def _look_for_circles(self, name: str, rule: LinkRule) -> None:
        broker, ways = self.streams.broker, [*self._ways_by(name, rule)]
        way = circle(ways, broker, rule.into)
        if way is not None and newest(way) == rule.generation:
            self.stop(name, f"it would close a circle: {in_words(way, broker, rule.into)}")
        elif len(ways) > WAYS_MAX or any(len(way) > HOPS_MAX for way in ways):
            # A circle could be among those that have no room in a report.
            words = f"at most {WAYS_MAX} places, over {HOPS_MAX} links"
            self.stop(name, f"its messages come from too far: expected {words}")

    def _note_state(self, name: str) -> None:
        """Report that a link runs, or that its source is away."""
        progress, state = self.progress[name], self.state(name)
        if state in (RUNNING, AWAY) and state != progress.told:
            report = progress.report
            details = {"reason": report.trouble} if report is not None and state == AWAY else {}
            self.report(state, name, **details)
            progress.told = state

    def _report_of(self, name: str) -> LinkReport | None:
        """Return the last report about a link, if it counts still."""
        progress, rule = self.progress[name], self.rules[name]
        report, reporter = progress.report, progress.reporter
        if report is None or reporter is None or not reporter.open or rule.rests:
            return None
        return report if report.generation == rule.generation else None

    def state(self, name: str) -> str:
        """Return the state of a link."""
        if rests := self.rules[name].rests:
            return rests
        report = self._report_of(name)
        return WAITING if report is None else AWAY if report.trouble else RUNNING

    def _ways_by(self, name: str, rule: LinkRule) -> Iterator[Way]:
        """Yield the ways by which messages come by a link."""
        report = self._report_of(name)
        if report is not None and report.broker:
            yield from prolonged(report.ways, report.broker, rule.stream, f"link {name}", rule.generation)

    def ways(self, stream: str) -> list[Way]:
        """Return the ways by which messages come to a stream, over links and feeds."""
        return one_of_each(self._ways(stream, {stream: None}))

    def _ways(self, stream: str, seen: dict[str, None]) -> Iterable[Way]:
        found: list[Way] = []
        for name, rule in self.rules.items():
            if rule.into == stream:
                found += self._ways_by(name, rule)
        target = Place("stream", stream)
        for feed in self.feeds.by_name.values():
            source = feed.name.source
            if feed.rule.target == target and source.kind == "stream" and source.name not in seen:
                seen[source.name] = None
                before = self._ways(source.name, seen)
                found += prolonged(before, self.streams.broker, source.name, f"feed {feed.name.name}", 0)
        return found

    # Rows

    def row(self, name: str) -> LinkRow:
        """Return a link for people."""
        rule, progress, report = self.rules[name], self.progress[name], self._report_of(name)
        trouble = report.trouble if report is not None else ""
        return LinkRow(
            name=name,
            urls=[*rule.urls],
            remote=rule.stream,
            stream=rule.into,
            criteria=[[*criterion] for criterion in rule.criteria],
            where=rule.where,
            start=rule.start,
            context=rule.context,
            user=rule.setter.user,
            generation=rule.generation,
            state=self.state(name),
            reason=rule.stopped or trouble,
            position=self.positions[name].at,
            lag=report.lag if report is not None else None,
            lag_seconds=report.lag_ms / 1000 if report is not None else None,
            rate=progress.rate.each_second(self.effects.now),
            taken=progress.taken,
            gaps=dict(progress.gaps),
        )

    def names(self) -> Sequence[str]:
        """Return the names of all links."""
        return [*self.rules]
