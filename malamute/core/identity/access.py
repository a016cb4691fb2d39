"""Who a peer is, and whether it may: principals, and the one check of every command.

Names that begin with `$` are the broker's own. All others have the rules of the configuration
(`malamute.access`); without any, everything is allowed. A decision in favour is remembered for each principal
and name, or subject, so a command whose name is known costs a look into a set.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from malamute.access import (
    ACTIONS,
    AccessRule,
    Accounts,
    CommonScope,
    Decision,
    DecisionReport,
    Grants,
    Policy,
    Scope,
    explain,
)
from malamute.access.account import PROOFS
from malamute.access.policy import NO_GROUPS
from malamute.access.rule import CURSOR, IMPERSONATE, WITH_SUBJECT, needed_rule
from malamute.core.identity.needs import ACCESS, OF_BROKER, WHOLE, needs
from malamute.errors import AccessRefused
from malamute.matching import Selector
from malamute.protocol.messages import Change, Message
from malamute.protocol.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from malamute.core.identity.accounts import AccountDirectory
    from malamute.core.identity.groups import GroupDirectory
    from malamute.core.iteration.settings import Settings

DECISIONS_MAX = 65_536
"""Names that are remembered as allowed, of all principals together. With one more, all are forgotten."""


NOTHING = Grants([])
"""The grants of a user of an unreadable group."""

NO_RULE = "no rule"
"""In place of the rule that refused something, where none allows it."""

RESERVED = "reserved for the broker"
"""The same where the name of the thing is the broker's own, and no rule could allow it."""


class Principal(NamedTuple):
    """Who a peer is, as far as its edge found out. A session belongs to the `user` that opened it.

    `method` is how the peer was authenticated, and `listener` the endpoint that it connected to; both are
    empty if that is not known. Rules name `claims` as `{claim.NAME}`.

    One that was proved may act as another user: then it is that user here, and `by` the one that was proved.

    `proof` is the proof of an account's user; when the account has another one, the principal is nobody.

    A principal that was proved by a token is nobody from `expires_at` on, in seconds since the epoch, or when
    the `key` that has signed the token is not trusted any more. `scope` are rules that narrow its
    permissions.
    """

    user: str = ""
    groups: frozenset[str] = frozenset()
    method: str = ""
    listener: str = ""
    claims: tuple[tuple[str, str], ...] = ()
    expires_at: float = inf
    key: str = ""
    scope: tuple[AccessRule, ...] | None = None
    by: Principal | None = None
    proof: str = ""

    @property
    def lasting(self) -> Principal:
        """Return the principal, with any proof, for work that continues with its rights after its session."""
        return self._replace(proof="", by=self.by and self.by.lasting)

    @property
    def proved(self) -> Principal:
        """The one that was proved."""
        return self.by or self

    @property
    def by_user(self) -> str:
        """The user that was proved, if it acts as another one; else empty."""
        return self.by.user if self.by is not None else ""

    def stored(self) -> tuple[Any, ...]:
        """Return the stored form of the principal, for work that continues with its rights.

        The form has its identity and the limits of its rights; it outlives the token, but not the token's
        key.
        """
        scope = None if self.scope is None else [*map(str, self.scope)]
        own = self.user, sorted(self.groups), self.method, [*map(list, self.claims)], self.key, scope
        return own if self.by is None else (*own, self.by.stored())

    @classmethod
    def of(cls, value: Sequence[Any]) -> Principal:
        """Return the principal of a stored form. Raises an exception of any kind for anything else."""
        user, groups, method, claims, key, scope, *by = value
        rules = None if scope is None else tuple(map(AccessRule.parse, scope))
        pairs = tuple((str(name), str(text)) for name, text in claims)
        proved = cls.of(*by) if by else None
        return cls(
            str(user), frozenset(groups), str(method), claims=pairs, key=str(key), scope=rules, by=proved
        )


ANONYMOUS = Principal()
"""Any peer of an edge that asks none who it is."""


AnyScope = Scope | CommonScope

_UNRESERVED = frozenset(("client", "topic", "broker"))
"""Kinds of things whose names the broker does not reserve."""

_NONE: frozenset[str] = frozenset()


class Permissions:
    """The permissions of one principal. `fast` has, by command, the place of a name and the allowed names.

    A command that is not in it needs nothing; one whose name is not among them is to be checked.
    """

    __slots__ = (
        "__weakref__",
        "_allowed",
        "_control",
        "_cursors",
        "_generation",
        "_grants",
        "_subjects",
        "fast",
        "principal",
    )

    def __init__(self, principal: Principal, control: AccessControl) -> None:
        self.principal = principal
        self._control = control
        self._generation = control.generation
        self._allowed: dict[tuple[str, str], set[str]] = {}
        """Names that are allowed under every subject."""
        self._subjects: dict[tuple[str, str, str], tuple[AnyScope, set[str]]] = {}
        """The kinds with rules, and the subjects known to be allowed."""
        self._cursors: set[tuple[str, str, str, str]] = set()
        """Cursors with their owners that it is known to may use."""
        self._grants: list[Grants] | None = None
        """The grants of the rules and of the token: only both together allow."""
        self.fast: dict[type[Any], tuple[int, Container[object]]] = {}
        for command, needed in ACCESS.items():
            if needed:
                first = needed[0]
                # Where more than one name is to be checked, one that is known says nothing of the others.
                alone = len(needed) == 1 and first.kind and command not in OF_BROKER
                allowed = self._names(first.action, first.kind) if alone else _NONE
                self.fast[command] = (command._fields.index(first.field), allowed)

    def check(self, message: Message) -> None:
        """Check a command.

        Raises:
            AccessRefused: the principal may not do that.
        """
        for action, kind, name, subjects in needs(message):
            if action == "create":
                self._require_created(kind, name)
            else:
                self.require(action, kind, name, subjects)

    def _require_created(self, kind: str, name: str) -> None:
        """Check that the principal may create a resource: by that right, or by `admin`."""
        try:
            self.require("create", kind, name)
        except AccessRefused:
            try:
                self.require("admin", kind, name)
            except AccessRefused:
                pass
            else:
                return
            raise

    def require_there(self, kind: str, name: str, there: Container[str]) -> None:
        """Check that a resource exists, or may be created by the command.

        Existence changes with every command, so handlers ask this where they would create a resource.

        Raises:
            AccessRefused: the principal may not make it.
        """
        if name not in there:
            self.require("create", kind, name)

    def require(self, action: str, kind: str, name: str, subjects: Sequence[str] = ()) -> None:
        """Check one action on one thing, under each of these subjects, or on the `WHOLE` of a queue.

        Raises:
            AccessRefused: the principal may not do that.
        """
        if subjects == WHOLE:
            if kind != "stream":
                self._require_whole(action, kind, name)
                return
            subjects = ()
        if name in self._names(action, kind):
            return
        known = self._subjects.get((action, kind, name))
        if known is None:
            if self._control.is_reserved(action, kind, name):
                words = (
                    f"the name {name!r} is reserved for the broker: expected one without '$' at its beginning"
                )
                raise AccessRefused(words, action, f"{kind}/{name}", RESERVED)
            scope = self.scope(action, kind, name)
            self._control.count()
            is_whole = scope is None or scope.is_open or action not in WITH_SUBJECT
            if scope is not None and (is_whole or not subjects):
                _refuse_unless(scope.decide(), action, kind, name)
            if is_whole:
                self._names(action, kind).add(name)
            if scope is None or is_whole or not subjects:
                # That some subject is allowed says nothing of the others.
                return
            known = self._subjects[action, kind, name] = scope, set()
        self._check_subjects(*known, (action, kind, name), subjects)

    def require_some(self, action: str, kind: str, name: str) -> None:
        """Check one action on one thing under some subject; each subject is checked by `require`.

        Raises:
            AccessRefused: the principal may not do that under any.
        """
        scope = self.scope(action, kind, name)
        if scope is not None:
            _refuse_unless(scope.decide(), action, kind, name)

    def require_cursor(self, action: str, stream: str, cursor: str, owner: str) -> None:
        """Check one action on a cursor, beside the need of its stream: its owner and a rule allow it.

        So does the right to administer its stream, for `admin`. A cursor without an owner, which is empty, is
        anybody's.

        Raises:
            AccessRefused: it is another user's, or a rule denies it.
        """
        known = action, stream, cursor, owner
        if known in self._cursors:
            return
        scope = self.scope(action, CURSOR, stream)
        if scope is not None:
            decision = scope.decide(cursor)
            if not decision.allowed and (decision.by or not self._has_cursor(action, stream, owner)):
                _refuse_unless(decision, action, CURSOR, stream, cursor)
        self._control.count()
        self._cursors.add(known)

    def _has_cursor(self, action: str, stream: str, owner: str) -> bool:
        if owner in ("", self.principal.user):
            return True
        scope = self.scope("admin", "stream", stream) if action == "admin" else None
        return scope is not None and scope.decide().allowed

    def _require_whole(self, action: str, kind: str, name: str) -> None:
        scope = self.scope(action, kind, name)
        if scope is not None and not scope.is_open:
            _refuse_unless(
                Decision(False, by=next((term.by for term in scope.deny), None)), action, kind, name
            )

    def _check_subjects(
        self, scope: AnyScope, allowed: set[str], thing: tuple[str, str, str], subjects: Sequence[str]
    ) -> None:
        if allowed.issuperset(subjects):
            return
        for subject in {*subjects}.difference(allowed):
            _refuse_unless(scope.decide(subject), *thing, subject)
            self._control.count()
            allowed.add(subject)

    def scope(self, action: str, kind: str, name: str) -> AnyScope | None:
        """Return the rules about one resource; None without rules for that action."""
        if self._grants is None:
            self._grants = self._granted()
        if not self._grants or action not in ACTIONS:
            return None
        scopes = [grants.scope(action, kind, name) for grants in self._grants]
        return scopes[0] if len(scopes) == 1 else CommonScope(scopes)

    def _granted(self) -> list[Grants]:
        who, control = self.principal, self._control
        granted = [control.grants(who)] if control.in_force else []
        proved = who.proved
        if proved.scope is not None:
            granted.append(Policy(proved.scope).grants(proved.user, proved.groups, proved.claims))
        return granted

    def narrow(self, action: str, kind: str, name: str, selector: Selector) -> Selector:
        """Return a selector narrowed to the messages that the principal may have.

        Raises:
            AccessRefused: nothing is left.
        """
        scope = self.scope(action, kind, name)
        try:
            return selector if scope is None else scope.narrow(selector)
        except AccessRefused as error:
            raise AccessRefused(error.text, action, f"{kind}/{name}", NO_RULE) from None

    def _names(self, action: str, kind: str) -> set[str]:
        return self._allowed.setdefault((action, kind), set())

    def renew(self) -> None:
        """Apply new rules, and forget the decisions of the old ones."""
        if self._generation != self._control.generation:
            self._generation = self._control.generation
            self.forget()

    def forget(self) -> None:
        """Decide all anew."""
        self._grants = None
        self._subjects.clear()
        self._cursors.clear()
        for names in self._allowed.values():
            names.clear()


class AccessControl:
    """The permissions of all principals. `published` are the broker's own streams that rules may open.

    Without rules anybody may read them. The users who may log in are in the `accounts`.
    """

    def __init__(
        self,
        published: frozenset[str] = frozenset(),
        policy: Policy | None = None,
        accounts: AccountDirectory | Accounts | None = None,
        groups: GroupDirectory | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.accounts = accounts or Accounts()
        self._groups = groups
        self.generation = 0
        """How often all decisions were outdated."""
        self.was_in_force = self.in_force
        """Whether there was any rule when that was done last."""
        self._published = published
        self._decisions = 0
        # Decisions go with the last session of their principal.
        self._permissions: WeakValueDictionary[Principal, Permissions] = WeakValueDictionary()

    def of(self, principal: Principal) -> Permissions:
        """Return the present permissions of a principal."""
        permissions = self._permissions.get(principal)
        if permissions is None:
            permissions = self._permissions[principal] = Permissions(principal, self)
        permissions.renew()
        return permissions

    def act_as(self, proved: Principal, user: str) -> Principal:
        """The principal that one that was proved is to be, as another user.

        Raises:
            AccessRefused: no rule allows that, or there is no such user.
        """
        if user == proved.user:
            return proved
        self._check_act_as(proved, user)
        return Principal(
            user,
            method=proved.method,
            listener=proved.listener,
            expires_at=proved.expires_at,
            by=proved,
        )

    def _check_act_as(self, proved: Principal, user: str) -> None:
        needed = IMPERSONATE, f"user/{user}", NO_RULE
        if not proved.user:
            words = "a client that proves nobody acts as nobody: expected a user, a key or a token beside it"
            raise AccessRefused(words, *needed)
        if not self.in_force:
            # Without rules all else is allowed. This would make every name anybody's.
            raise AccessRefused(f"'impersonate user/{user}' is not allowed: there are no rules", *needed)
        self.of(proved).require(IMPERSONATE, "user", user)
        if self.accounts.is_disabled(user):
            raise AccessRefused(f"the account {user!r} is disabled", *needed)
        if self.accounts.named(user) is None and user not in self.policy.users:
            raise AccessRefused(f"there is no user {user!r} to act as", *needed)

    def confirm(self, principal: Principal) -> None:
        """Check that who a peer is still counts.

        Raises:
            AccessRefused: its account was disabled, or has another key, password or uid; or the key that has
                signed its token is not trusted now; or it may not act any more as the user that it is.
        """
        if principal.by is not None:
            self.confirm(principal.by)
            self._check_act_as(principal.by, principal.user)
            return
        user, by_account = principal.user, principal.method and not principal.key
        if principal.key and principal.key not in self.policy.keys:
            raise AccessRefused(f"the token of {user!r} was signed by a key that is not trusted any more")
        account = self.accounts.named(user)
        if self.accounts.is_disabled(user) or (by_account and account is None):
            raise AccessRefused(f"the account {user!r} is disabled")
        if account is not None and principal.proof and principal.proof != account.proof(principal.method):
            changed = PROOFS[principal.method]
            raise AccessRefused(f"the {changed} of {user!r} was changed: log in with the one of now")

    def confirm_change(self, principal: Principal, change: Change) -> None:
        """Check that a principal still has the rights of an earlier change.

        Raises:
            AccessRefused: it may not, or does not count any more.
        """
        self.confirm(principal)
        self.of(principal).check(change)

    def would_allow(self, principal: Principal, change: Change, settings: Settings) -> bool:
        """Whether a principal could make a change if the broker went by these settings."""
        accounts = copy(self.accounts)
        if not isinstance(accounts, Accounts):
            accounts.configured = settings.accounts
        control = AccessControl(self._published, settings.access, accounts, self._groups)
        try:
            control.confirm_change(principal, change)
        except AccessRefused:
            return False
        return True

    @property
    def in_force(self) -> bool:
        """Whether there is any rule: without one, everything is allowed."""
        return self.in_force_without()

    def in_force_without(self, *, group: str = "", user: str = "") -> bool:
        """Whether there is any rule beside those that are stored of a group, or of a user."""
        groups = self._groups
        return (
            self.policy.in_force
            or self.accounts.have_rules_beside(user)
            or (groups is not None and groups.have_rules_beside(group))
        )

    def grants(self, principal: Principal) -> Grants:
        """Return the grants of a principal, by its name, its groups and its account."""
        user, claims = principal.user, principal.claims
        groups, rules = self._of_account(user)
        groups = (*principal.groups, *groups)
        if self._is_sealed(user, groups):
            return NOTHING
        return self.policy.grants(user, groups, claims, rules, self._stored_groups)

    @property
    def _stored_groups(self) -> Mapping[str, tuple[AccessRule, ...]]:
        return self._groups.stored if self._groups is not None else NO_GROUPS

    def _is_sealed(self, user: str, groups: Iterable[str]) -> bool:
        """Return whether a user is in a group whose denials are unknown."""
        known = self._groups
        if known is None or not (known.unreadable or known.incomplete):
            return False
        return any(known.is_sealed(name, self.policy) for name in {*groups, *self.policy.groups_of(user)})

    def explain(self, user: str, action: str, target: str) -> DecisionReport:
        """Which rule decides whether a user may do something. Raises `InvalidRule`."""
        groups, rules = self._of_account(user)
        stored, in_force = self._stored_groups, self.in_force
        found = explain(self.policy, user, action, target, groups, (), rules, stored, in_force=in_force)
        if in_force and self._is_sealed(user, groups):
            return DecisionReport(Decision(False), in_force, found.about)
        return found

    def _of_account(self, user: str) -> tuple[tuple[str, ...], tuple[AccessRule, ...]]:
        account = self.accounts.named(user)
        return (account.groups, account.rules) if account is not None and not account.disabled else ((), ())

    def is_reserved(self, action: str, kind: str, name: str) -> bool:
        """Whether a thing is the broker's own, and not for a client to do this with.

        A private mailbox has a reserved name, too, and takes messages from any client that knows it.
        """
        if not name.startswith(RESERVED_PREFIX) or kind in _UNRESERVED or action in ("view", "browse"):
            return False
        if kind == "mailbox":
            return action == "receive"
        return not (action == "subscribe" and name in self._published)

    def count(self) -> None:
        """One more decision is to be remembered."""
        if self._decisions >= DECISIONS_MAX:
            self.forget()
        self._decisions += 1

    def forget(self) -> None:
        """Decide all anew."""
        self._decisions = 0
        for permissions in [*self._permissions.values()]:
            permissions.forget()

    def outdate(self) -> None:
        """Have all that is decided decided anew, each when its permissions are renewed.

        Nothing here takes longer the more of them there are.
        """
        self.generation += 1
        self.was_in_force = self.in_force
        self._decisions = 0

    def forget_user(self, user: str) -> None:
        """Decide the permissions of one user anew."""
        for permissions in [*self._permissions.values()]:
            if user in (permissions.principal.user, permissions.principal.by_user):
                permissions.forget()

    def configure(self, policy: Policy) -> bool:
        """Go by other rules from now on. Returns whether they are others, so that decisions are outdated.

        There may be very many, so the loader of the configuration compares them.
        """
        if policy is self.policy:
            return False
        self.policy = policy
        return True


def _refuse_unless(decision: Decision, action: str, kind: str, name: str, subject: str = "") -> None:
    """Raise `AccessRefused` in the words of the rule that would allow the action."""
    if not decision.allowed:
        needed = needed_rule(action, kind, name, subject)
        rule = str(decision.by.rule) if decision.by else NO_RULE
        because = f"refused by {rule!r}" if decision.by else "no rule allows it"
        raise AccessRefused(
            f"{needed!r} is not allowed: {because}", action, needed.removeprefix(f"{action} "), rule
        )
