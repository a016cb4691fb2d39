"""What a topic of QUERY or CHANGE is: a value whose fields are its arguments, and the type of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from malamute.protocol.admin.value import Argument, Value, argument, decode
from malamute.protocol.arguments import ROWS, Arguments
from malamute.protocol.messages import ADDRESS, BOOLEAN

Answer = TypeVar("Answer", covariant=True)


class AdminTopic(Value, Generic[Answer]):
    """A topic of QUERY or of CHANGE: its fields are the arguments. `Answer` is the type of its answer."""

    topic: ClassVar[str]
    """Its name on the wire."""

    rules: ClassVar[Arguments] = Arguments()
    """What each argument may hold, and which of them may be left out."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        given = {n: one for n, one in cls._defaults.items() if isinstance(one, Argument)}
        required = {name: one.rule for name, one in given.items() if one.default is ...}
        optional = {name: one.rule for name, one in given.items() if one.default is not ...}
        # What all topics of a kind may take comes last.
        cls.rules = Arguments({**cls.rules.required, **required}, {**optional, **cls.rules.optional})
        cls._defaults = {**cls._defaults, **{name: one.default for name, one in given.items()}}

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """The value with these arguments.

        Raises:
            InvalidValue: an argument is unknown, missing, or not what it may hold.
            InvalidName: an argument breaks the rule for names.

        """
        cls.rules.check(cls.topic, arguments)
        return cls(**arguments)

    @classmethod
    def decode_answer(cls, value: Any) -> Any:
        """The answer as a value. Raises `Malformed` if it is from a broker of another version."""
        kind: Any = cls
        return decode(_answer_of(kind), value)


@cache
def _answer_of(kind: Any) -> Any:
    bases = (base for one in kind.__mro__ for base in getattr(one, "__orig_bases__", ()))
    return next(get_args(base)[0] for base in bases if get_args(base))


class AdminQuery(AdminTopic[Answer]):
    """A question to the broker."""

    page_key: ClassVar[str] = ""
    """The field of its rows by which they are in order, if they come in pages."""


class PagedQuery(AdminQuery[Answer]):
    """A list that comes in pages: `limit` rows behind the one of this name or id."""

    after_name: str = argument(ADDRESS, default="")
    limit: int | None = argument(ROWS, default=None)


class AdminChange(AdminTopic[Answer]):
    """A change. With `dry_run` nothing is changed, and the answer tells what would be."""

    dry_run: bool = argument(BOOLEAN, default=False)
