"""The topics of QUERY and CHANGE: values whose fields are the arguments, and the types of their answers.

The type of a field is one of `fields.py`, and there is no other check of an argument. Arguments that
pass `Arguments.check` need no second look: a handler asks only whether a named object exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import NODEFAULT
from msgspec.structs import fields

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol.admin.value import Value, decode
from malamute.protocol.fields import Address, Boolean, RowCount, Rule, rule_of
from malamute.protocol.texts import shown

Answer = TypeVar("Answer", covariant=True)

SECRET = frozenset({"password"})
"""The names of arguments that are in no error, no log and no audit, with any topic."""

_NAMES = frozenset(("name", "other name", "address", "feed", "place"))
"""Types whose values are names: a text that is none is an `InvalidName`."""


class Arguments(NamedTuple):
    """The arguments of a topic with their rules: the required ones, and those that may be left out."""

    required: Mapping[str, Rule] = {}
    optional: Mapping[str, Rule] = {}

    @property
    def rules(self) -> dict[str, Rule]:
        """The rule of each argument."""
        return {**self.required, **self.optional}

    def check(self, topic: str, given: Mapping[str, Any]) -> None:
        """Raise `InvalidValue` or, for a text that breaks the rule for names, `InvalidName`."""
        for name, value in given.items():
            rule = self.required.get(name) or self.optional.get(name)
            if rule is None:
                raise InvalidValue(f"unknown argument {shown(name)} of {topic}: expected {self._known()}")
            if not rule.holds(value):
                fault = InvalidName if rule.words in _NAMES and type(value) is str else InvalidValue
                words = name if name in SECRET else f"{name} {shown(value)}"
                raise fault(f"{topic}: invalid {words}: expected {rule.expected}")
        for name, rule in self.required.items():
            if name not in given:
                raise InvalidValue(f"missing argument {name!r} of {topic}: expected {rule.expected}")

    def _known(self) -> str:
        return ", ".join(self.rules) or "none"


class AdminTopic(Value, Generic[Answer]):
    """A topic of QUERY or of CHANGE: its fields are the arguments. `Answer` is the type of its answer."""

    topic: ClassVar[str]
    """Its name on the wire."""

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the value with these arguments.

        Raises:
            InvalidValue: an argument is unknown, missing, or not of its type.
            InvalidName: an argument breaks the rule for names.
        """
        arguments_of(cls).check(cls.topic, arguments)
        return cls(**arguments)

    @classmethod
    def decode_answer(cls, value: Any) -> Any:
        """Return the answer as a value. Raises `Malformed` if it is from a broker of another version."""
        kind: Any = cls
        return decode(answer_of(kind), value)


@cache
def arguments_of(kind: type[AdminTopic[Any]]) -> Arguments:
    """Return the arguments of a topic; those that all topics of a kind may have come last."""
    hints = get_type_hints(kind, include_extras=True)
    base: Any = kind.__mro__[1]
    shared = base.__struct_fields__
    own = sorted(fields(kind), key=lambda field: field.name in shared)
    rules = {field.name: _rule(hints[field.name]) for field in own}
    required = {field.name for field in own if field.default is NODEFAULT}
    return Arguments(
        {name: rule for name, rule in rules.items() if name in required},
        {name: rule for name, rule in rules.items() if name not in required},
    )


def _rule(hint: Any) -> Rule:
    """Return the rule of an argument; None stands for one that is left out."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (kind for kind in get_args(hint) if get_origin(kind) is Annotated)
    return rule_of(hint)


@cache
def answer_of(kind: Any) -> Any:
    """Return the type of the answer to a topic."""
    bases = (base for one in kind.__mro__ for base in getattr(one, "__orig_bases__", ()))
    return next(get_args(base)[0] for base in bases if get_args(base))


class AdminQuery(AdminTopic[Answer]):
    """A question to the broker."""

    page_key: ClassVar[str] = ""
    """The field of its rows by which they are in order, if they come in pages."""


class PagedQuery(AdminQuery[Answer]):
    """A list that comes in pages: `limit` rows behind the one of this name or id."""

    after_name: Address = ""
    limit: RowCount | None = None


class AdminChange(AdminTopic[Answer]):
    """A change. With `dry_run` nothing is changed, and the answer has the outcome of the change."""

    dry_run: Boolean = False
