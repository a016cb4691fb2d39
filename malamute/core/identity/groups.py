"""Groups of users that operators have put into the store, and the rules of each.

The configuration counts for its groups. A change of a stored group takes effect at once, and is undone if the
disk refuses it. Rules may deny, so a group that cannot be known must not count as one without rules: a user
in a *sealed* group is allowed nothing. Sealed are groups whose value is damaged or may be outdated and, while
damaged blocks of the log are in the store, unknown groups: their rules may have been there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from malamute.access import AccessRule
from malamute.core.iteration.stored_values import StoredValues
from malamute.errors import InvalidName, InvalidValue, NotFound, TooMany
from malamute.protocol.limits import RULES_MAX
from malamute.protocol.names import RESERVED_PREFIX, is_name
from malamute.store.operations import DeleteValue, Key, PutValue, Recovered, Stranded
from malamute.store.tables import GROUPS

if TYPE_CHECKING:
    from malamute.access import Policy
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.recovery import Recovery
    from malamute.errors import MalamuteError

STORED_GROUPS_MAX = 1_000
"""Groups in the store."""

DOUBTFUL = "a group allows its users nothing: what was stored of it last may be lost; look at it, and set it"
"""The words of the log for a group that may be outdated by damage."""

Rules = tuple[AccessRule, ...]


class StoredGroups(StoredValues[str, Rules]):
    """The stored groups. `changed` is called when one is other than before."""

    def __init__(self, effects: Effects, changed: Callable[[], None]) -> None:
        super().__init__(effects.stage)
        self._changed = changed

    def _become(self, name: str, value: Rules | None) -> None:
        if self.get(name) != value:
            super()._become(name, value)
            self._changed()


class GroupDirectory:
    """The groups that are in the store, beside those of a policy."""

    def __init__(self, effects: Effects, changed: Callable[[], None]) -> None:
        self.unreadable: set[str] = set()
        """Stored groups that are unreadable or may be outdated."""
        self.incomplete = False
        """Whether there may have been groups of which nobody knows."""
        self._effects = effects
        self._changed = changed
        self.stored = StoredGroups(effects, changed)

    def have_rules_beside(self, name: str) -> bool:
        """Whether another group than this one has rules, or may have."""
        others = (rules for other, rules in self.stored.items() if other != name)
        return not self.unreadable <= {name} or any(others)

    def is_sealed(self, name: str, policy: Policy) -> bool:
        """Return whether a group is sealed, as its denials are unknown."""
        if name in policy.groups:
            return False
        return name in self.unreadable or (self.incomplete and name not in self.stored)

    # Stored groups

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the groups that the store kept."""
        self.incomplete = any(defect.kind == "block" for defect in recovered.defects)
        for key, value in recovered.table(GROUPS).items():
            doubtful = (GROUPS, key) in recovered.doubtful
            recovery.take_up("group", str(key[0]), self._restore, key, value, doubtful)

    def _restore(self, key: Key, value: Any, doubtful: bool) -> None:
        """Take up one of them.

        Raises:
            MalamuteError, TypeError, ValueError: it is none. Its users are allowed nothing.
        """
        name = str(key[0])
        self.unreadable.add(name)
        if not isinstance(value, list | tuple):
            raise TypeError(f"rules of a group are a list, and this is {type(value).__name__}")
        rules = tuple(AccessRule.parse(str(rule)) for rule in value)
        if (name,) != key:
            raise ValueError(f"invalid key of a group: {key!r}")
        # The value is the store's, so nothing is under way that could fail.
        dict.__setitem__(self.stored, name, rules)
        if doubtful:
            self._effects.notice(DOUBTFUL, name=name)
        else:
            self.unreadable.discard(name)

    def check(self, name: str, policy: Policy) -> None:
        """Check that a group may be stored.

        Raises:
            InvalidName: the name is reserved.
            InvalidValue: the configuration has it.
            TooMany: there are as many as may be.
        """
        if not is_name(name) or name.startswith(RESERVED_PREFIX):
            raise InvalidName(f"invalid name {name!r}: expected one that does not begin with $")
        self.check_name(name, policy)
        there = self.stored.keys() | self.unreadable
        if name not in there and len(there) >= STORED_GROUPS_MAX:
            raise TooMany(f"too many groups: expected at most {STORED_GROUPS_MAX} in the store")

    def check_name(self, name: str, policy: Policy) -> None:
        """Raise `InvalidValue` if the configuration has this group."""
        if name in policy.groups:
            raise InvalidValue(
                f"the group {name!r} is in the configuration (access.group): change it there, and reload"
            )

    def check_rules(self, name: str, rules: Sequence[AccessRule]) -> None:
        """Raise `TooMany` if these are more than a group may have."""
        if len(rules) > RULES_MAX:
            raise TooMany(
                f"{len(rules)} rules of the group {name!r} are too many: expected {RULES_MAX} at most"
            )

    def known(self, name: str) -> Rules:
        """The rules of a stored group. Raises `NotFound` if there is none that can be read."""
        if name in self.unreadable:
            raise NotFound(
                f"the group {name!r} in the store cannot be read: give all its rules, or remove it"
            )
        if name not in self.stored:
            raise NotFound(f"there is no group {name!r} in the store: add it")
        return self.stored[name]

    def put(self, name: str, rules: Iterable[AccessRule]) -> None:
        """Add or change a stored group, with all else that this iteration stores."""
        rules = tuple(rules)
        self.stored.put(name, rules)
        self._effects.stage.store(PutValue(GROUPS, (name,), tuple(map(str, rules))))
        self._read(name)

    def remove(self, name: str) -> None:
        """Remove a stored group, with all else that this iteration stores."""
        self.stored.put(name, None)
        self._effects.stage.store(DeleteValue(GROUPS, (name,)))
        self._read(name)

    def _read(self, name: str) -> None:
        """An unreadable group gets its new value, if the disk takes that."""
        if name in self.unreadable:
            self._effects.stage.when_stored(partial(self._settled, name), awaited=False)

    def _settled(self, name: str, error: MalamuteError | None) -> None:
        if error is None:
            self.unreadable.discard(name)
            self._changed()

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: groups that are in it are stored once more as they are."""
        for (name,) in stranded.keys(GROUPS):
            if name in self.stored and name not in self.unreadable:
                self.stored.rely_on_changes(name.__eq__)
                self._effects.stage.store(PutValue(GROUPS, (name,), tuple(map(str, self.stored[name]))))
