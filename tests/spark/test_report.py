"""The page: whole, well-formed, safe, and without anything from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from history_files import EVIL, Sent, Whole, write

from malamute.spark.report import POINTS, Facts, page, save, width_of_points, window_of
from malamute.spark.report_charts import SIZE, Tick, bars, columns, lines, nice_top, short
from malamute.spark.scan import ExportedHistory, HistoryBounds

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Notes attributes and titles, and that every element is closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_a_page_is_whole_and_needs_nothing_else(whole: Whole, tmp_path: Path) -> None:
    save(page(whole.engine, whole.tables, Facts("somewhere", 60, 20)), str(tmp_path / "out"))
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _, _ in checker.attributes)
    assert EVIL not in html
    assert [
        v for _, n, v in checker.attributes if n in ("src", "href") and not (v or "").startswith("#")
    ] == []
    assert re.findall(r"url\(|@import|https?:", html) == []
    assert "prefers-color-scheme:dark" in html
    assert {"Streams", "Messages over time", "Top subjects", "Gaps", "Headers", "Measure: delay"} <= {
        *checker.headings
    }
    assert {"Damage", "Queues"}.isdisjoint(checker.headings)


@pytest.mark.parametrize(
    "chart",
    [
        lines(
            {"a & b": [(0.0, 1.0), (1.0, 3.0)], "one": [(0.5, 2.0)]}, [Tick(0, "<"), Tick(1, "b")], "msg/s"
        ),
        lines({"nothing": [(0.5, 0.0)]}, [], ""),
        columns([("a", 0), ("b", 5)], [Tick(0.5, "x")], "messages"),
        columns([], [], ""),
        bars([("a" * 100, 1), ("<b>", 3)], "messages"),
        bars([], ""),
    ],
)
def test_charts_are_well_formed(chart: str) -> None:
    root = ET.fromstring(f"<div>{chart}</div>")
    for mark in root.iter():
        for name in ("x", "y", "width", "height", "cx", "cy"):
            if name in mark.attrib:
                assert float(mark.attrib[name]) >= 0


def test_the_highest_point_is_within_the_chart() -> None:
    root = ET.fromstring(f"<div>{lines({'a': [(0, 0), (0.5, 97), (1, 50)]}, [], '')}</div>")
    points = [tuple(map(float, p.split(","))) for p in root.find(".//polyline").attrib["points"].split()]  # type: ignore[union-attr]
    assert 0 <= points[1][1] < points[2][1] < points[0][1] == SIZE


def test_a_chart_says_what_its_numbers_are() -> None:
    values = [("a", 1.0), ("b", 500.0)]
    ticks = [Tick(0, "00:00"), Tick(0.5, "00:30"), Tick(1, "01:00")]
    for chart in (lines({"a": [(0, 1), (1, 500)]}, ticks, "eggs"), columns(values, ticks, "eggs")):
        root = ET.fromstring(chart)
        written = ["".join(place.itertext()) for place in root.iter("span") if place.text]
        assert written == ["0", "125", "250", "375", "500", "00:00", "00:30", "01:00"]
        assert root.findtext("figcaption") == "eggs"
    root = ET.fromstring(bars(values, "eggs"))
    assert [place.text for place in root.iter("b")] == ["1", "500"]
    assert root.findtext("figcaption") == "eggs"


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (97, 100), (101, 200), (0.03, 0.05)])
def test_axes_end_with_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 7, 1234, 12_300_000, 2e9)] == ["0", "7", "1.23k", "12.3M", "2G"]


@pytest.mark.parametrize(
    ("seconds", "window"), [(0, 1), (2.5, 1), (300, 1), (301, 2), (3600, 15), (86_400, 300), (10**9, 604_800)]
)
def test_windows_follow_the_length_of_what_is_shown(seconds: float, window: int) -> None:
    assert window_of(seconds) == window


def test_the_length_of_a_history_is_that_of_all_its_streams_within_the_bounds(tmp_path: Path) -> None:
    write(tmp_path / "h", "a", [Sent(n, seconds=n) for n in range(1, 50)], rows=10)
    write(tmp_path / "h", "a", [Sent(n, seconds=n) for n in range(50, 101)], rows=10)
    write(tmp_path / "h", "b", [Sent(1, seconds=0.5)])
    assert ExportedHistory(str(tmp_path / "h")).seconds() == 99.5
    assert ExportedHistory(str(tmp_path / "h"), HistoryBounds(("b",))).seconds() == 0
    assert ExportedHistory(str(tmp_path / "h"), HistoryBounds(first=1000)).seconds() == 0


@pytest.mark.parametrize(
    ("span", "window", "width"),
    [(0, 60, 60), (299 * 60, 60, 60), (181 * 86_400, 3600, 86_400), (7200, 7, 28), (10**9, 60, 3_333_360)],
)
def test_points_stand_for_whole_units_of_time(span: int, window: int, width: int) -> None:
    assert width_of_points(span, window) == width
    assert span / width <= POINTS
