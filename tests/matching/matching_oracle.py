"""Naive matchers: the meaning of every family and of the expression, without any index.

These matchers share no code with the engine. Topics follow the text of the requirements word by word; areas
are decided by vectors in space instead of angles; expressions are nested lists, not the engine's trees.
"""

import math
import re

ABSENT = object()


def topic(pattern, subject):
    parts, final = pattern.split("."), pattern.split(".")[-1]
    if _fits(parts, subject.split("."), least=1):
        return True
    return len(parts) > 1 and final in ("*", "#") and _fits(parts[:-1], subject.split("."), least=1)


def topic_amqp(pattern, subject):
    return _fits(pattern.split("."), subject.split("."), least=0)


def _fits(pattern, parts, least):
    if not pattern:
        return not parts
    if pattern[0] == "#":
        return any(_fits(pattern[1:], parts[n:], least) for n in range(least, len(parts) + 1))
    return bool(parts) and pattern[0] in ("*", parts[0]) and _fits(pattern[1:], parts[1:], least)


def kind(value):
    """The kind of a value; None, and what is no number, are of no kind and compare with nothing."""
    if isinstance(value, bool | str):
        return type(value)
    return float if isinstance(value, int | float) and not math.isnan(value) else None


def same(a, b):
    """Equal and of one kind."""
    return kind(a) is not None and kind(a) is kind(b) and a == b


def fields(pattern, headers):
    """`pattern` is (mode, [(name, values)]); no values mean presence."""
    mode, wanted = pattern
    hits = sum(
        name in headers and (not values or any(same(headers[name], value) for value in values))
        for name, values in wanted
    )
    return hits == len(wanted) if mode == "all" else hits > 0


def vector(latitude, longitude):
    up, along = math.radians(latitude), math.radians(longitude)
    return (math.cos(up) * math.cos(along), math.cos(up) * math.sin(along), math.sin(up))


def in_circle(latitude, longitude, radius_km, point):
    a, b = vector(latitude, longitude), vector(*point)
    cross = math.dist(
        (0, 0, 0), (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    )
    angle = math.atan2(cross, sum(x * y for x, y in zip(a, b, strict=True)))
    return angle * 6371.0088 <= radius_km


def in_box(south, west, north, east, point):
    latitude, longitude = point
    if not south <= latitude <= north:
        return False
    if abs(latitude) == 90 or east - west >= 360:
        return True
    while east < west:
        east += 360
    return any(west <= longitude + turn <= east for turn in range(-1080, 1081, 360))


def ordered(a, b):
    return kind(a) in (str, float) and kind(a) is kind(b)


ORDER = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def holds(tree, subject, headers, sender):
    """Evaluate an expression given as a nested list, for instance ["and", ["=", "a", 1], ["exists", "b"]]."""
    word, *rest = tree
    if word in ("and", "or"):
        results = [holds(item, subject, headers, sender) for item in rest]
        return all(results) if word == "and" else any(results)
    if word == "not":
        return not holds(rest[0], subject, headers, sender)
    places = {"subject": subject, "sender": sender or ABSENT}
    values = [places.get(name, headers.get(name, ABSENT)) for name in rest[: 2 if word == "within" else 1]]
    if any(value is ABSENT for value in values):
        return False
    return _test(word, *values, *rest[len(values) :])


def _test(word, value, *wanted):
    if word in ORDER:
        return ordered(value, wanted[0]) and ORDER[word](value, wanted[0])
    if word == "within":
        return _within(value, *wanted)
    return {
        "exists": lambda: True,
        "=": lambda: same(value, wanted[0]),
        "!=": lambda: kind(value) is not None and kind(value) is kind(wanted[0]) and value != wanted[0],
        "in": lambda: any(same(value, one) for one in wanted[0]),
        "between": lambda: ordered(value, wanted[0]) and wanted[0] <= value <= wanted[1],
        "prefix": lambda: isinstance(value, str) and value.startswith(wanted[0]),
        "matches": lambda: isinstance(value, str) and re.search(wanted[0], value) is not None,
    }[word]()


def _within(latitude, longitude, *area):
    if not kind(latitude) is kind(longitude) is float or not -90 <= latitude <= 90 or abs(longitude) >= 1e9:
        return False
    inside = in_circle if len(area) == 3 else in_box
    return inside(*area, (latitude, longitude))


def text(tree):
    """The expression as a user would write it."""
    word, *rest = tree
    if word in ("and", "or"):
        return f" {word} ".join(f"({text(item)})" for item in rest)
    if word == "not":
        return f"not ({text(rest[0])})"
    if word == "exists":
        return f"exists {rest[0]}"
    if word == "within":
        return f"within({', '.join(map(str, rest))})"
    if word == "between":
        return f"{rest[0]} between {literal(rest[1])} and {literal(rest[2])}"
    if word == "in":
        return f"{rest[0]} in ({', '.join(map(literal, rest[1]))})"
    return f"{rest[0]} {word} {literal(rest[1])}"


def literal(value):
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).lower()
