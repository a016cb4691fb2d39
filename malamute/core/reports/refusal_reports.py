"""Reports of refusals: by rules and quotas in `$sys`, of changes in the audit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timers
from malamute.core.reports.audit import REFUSED, Audit, who
from malamute.core.reports.refusal_log import ADDRESSES_MAX, Details, RefusalLog
from malamute.errors import AccessRefused, MalamuteError, NumberTooOld, QuotaExceeded
from malamute.protocol.messages import Change, Hello, Message

if TYPE_CHECKING:
    from malamute.core.identity.access import Principal
    from malamute.core.identity.quotas import QuotaTable
    from malamute.core.session.session import Session

SHOWN_MAX = 64
"""Characters that are shown of a name that nobody has proved."""


class RefusalReports:
    """Reports commands and connections that were refused, of many alike only some."""

    def __init__(self, effects: Effects, timers: Timers, quotas: QuotaTable, audit: Audit) -> None:
        self._effects = effects
        self._quotas = quotas
        self._audit = audit
        report_refused = partial(self._report, "access.refused")
        self._refused = RefusalLog(effects, timers, report_refused)
        self._strangers = RefusalLog(effects, timers, report_refused, ADDRESSES_MAX)
        """Refusals of peers before their first command, by their addresses."""
        self._exceeded = RefusalLog(effects, timers, partial(self._report, "quota.exceeded"))

    def command(
        self, session: Session | None, message: Message, error: MalamuteError, sender: Principal, origin: str
    ) -> None:
        """A command was refused. `sender` is the principal of the last HELLO, `origin` its address."""
        wanted = type(message).__name__.lower()
        if isinstance(error, AccessRefused):
            by = _who(session, message, sender, origin)
            action, rule = error.action or wanted, error.rule or error.text
            self._refused.note(by["user"], {**by, "action": action, "target": error.target, "rule": rule})
        elif isinstance(error, QuotaExceeded):
            self._quotas.refused += 1
            by, owner = _who(session, message, sender, origin), " ".join(error.owner)
            self._exceeded.note(by["user"], {**by, "action": wanted, "quota": error.limit, "owner": owner})
        # A command that comes too early, or before HELLO, has no outcome yet: the client repeats it.
        known = session is not None and session.open and not isinstance(error, NumberTooOld)
        if session is not None and known and type(message) is Change:
            self._audit.record(who(session), message.topic, message.arguments, REFUSED, error=error)

    def connection(self, origin: str, method: str, claimed: str, reason: str) -> None:
        """Report a connection that was refused before its first command.

        `claimed` is its unproved user, any text, escaped for its readers.
        """
        target = f"user/{shown_name(claimed)}" if claimed else ""
        nobody = dict(user="", by="", client="", address="")
        details = {**nobody, "method": method, "origin": origin, "action": "connect"}
        details.update(target=target, rule=reason)
        self._strangers.note(origin, details)

    def close(self) -> None:
        """Report the omitted refusals at the shutdown."""
        for log in (self._refused, self._strangers, self._exceeded):
            self._effects.guard("the end of a log of refusals", log.close)

    def _report(self, what: str, details: Details, count: int) -> None:
        user = details["user"]
        self._effects.event(f"{what}.{user}" if user else what, **details, count=count)


def _who(session: Session | None, message: Message, sender: Principal, origin: str) -> dict[str, str]:
    """The user, the client and the network address that a message comes from, as headers."""
    if session is not None and type(message) is not Hello:
        return who(session)
    # The user of a session of this name, if there is one, says nothing of the peer that asks for it.
    address = getattr(message, "address", "")
    return dict(
        user=sender.user, by=sender.by_user, method=sender.method, origin=origin, client="", address=address
    )


def shown_name(text: str) -> str:
    """Return a name of unknown origin for display: short, with printable characters alone."""
    short = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in short)
