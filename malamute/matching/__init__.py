"""The matching engine: the subscribers of a message, at a cost independent of their number.

Usable alone, without a broker. Pure: no socket, clock, disk, thread or randomness.

    index = Index()
    index.add("alice", Selector.parse([["topic", "forex.*"], ["exact", "news"]]))
    index.add("bob", Selector.parse([["topic", "forex.#"]], where="price > 100 and currency = 'USD'"))
    for group in index.match("forex.eur", {"price": 120, "currency": "USD"}):
        print(group.number, list(group.members))

To read: `index.py` for the whole, `family.py` for the idea of a family, then one file for each family.

    bitmap       sets of numbers           pattern, shapes, constituents, topic, filter    topics
    cache        results by subject        subjects, regex, fields                         the other families
    selector     requests as values        expression, parser, plan, conditions, thresholds  expressions
    criteria     families in use           geometry                                        areas on the sphere
    saved        an index as bytes
    compiled_selector    one selector against many messages    compiled    one expression, as a function
"""

from malamute.matching import fields, regex, subjects, topic  # registers the families
from malamute.matching.bitmap import Bitmap
from malamute.matching.cache import CacheBudget
from malamute.matching.compiled import message_test
from malamute.matching.compiled_selector import CompiledSelector
from malamute.matching.constituents import ConstituentTables
from malamute.matching.family import FAMILIES, Family, TermFamily, load_plugins, register
from malamute.matching.filter import Filter
from malamute.matching.index import Explanation, Group, Groups, Index, reason_of
from malamute.matching.parser import parse, parse_normal
from malamute.matching.selector import Criterion, Selector

__all__ = [
    "FAMILIES",
    "Bitmap",
    "CacheBudget",
    "CompiledSelector",
    "ConstituentTables",
    "Criterion",
    "Explanation",
    "Family",
    "Filter",
    "Group",
    "Groups",
    "Index",
    "Selector",
    "TermFamily",
    "fields",
    "load_plugins",
    "message_test",
    "parse",
    "parse_normal",
    "reason_of",
    "regex",
    "register",
    "subjects",
    "topic",
]
