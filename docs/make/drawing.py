"""Diagrams as SVG: boxes on a grid of pixels, arrows between their sides, and lifelines with messages.

A drawing is text in, text out: it needs no program, no font but the reader's own, and nothing from a network.
"""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape

INK, PALE, EDGE, GROUND = "#263238", "#607d8b", "#90a4ae", "#ffffff"
FILLS = {
    "plain": "#eceff1",
    "pure": "#e8f5e9",
    "disk": "#fff3e0",
    "net": "#e3f2fd",
    "frame": "none",
}
"""What a box is, by its colour: nothing special, pure code, the disk, the network, a frame around others."""

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" font-family="system-ui, sans-serif" font-size="13">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{pale}"/></marker></defs>
<rect width="100%" height="100%" rx="6" fill="{ground}"/>
"""


class Box(NamedTuple):
    """A box with a title, and perhaps lines below it."""

    x: int
    y: int
    width: int
    height: int

    def side(self, name: str) -> tuple[float, float]:
        """The middle of a side (`l`, `r`, `t`, `b`); a number after it moves along the side, from -1 to 1."""
        shift = float(name[1:] or 0) / 2
        across, down = self.x + self.width * (0.5 + shift), self.y + self.height * (0.5 + shift)
        return {
            "l": (self.x, down),
            "r": (self.x + self.width, down),
            "t": (across, self.y),
            "b": (across, self.y + self.height),
        }[name[0]]


class Drawing:
    """A picture that grows by what is put into it; `svg` is the whole."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._parts = [
            _HEAD.format(title=escape(title), width=width, height=height, pale=PALE, ground=GROUND)
        ]

    @property
    def svg(self) -> str:
        """The picture."""
        return "".join([*self._parts, "</svg>\n"])

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "plain") -> Box:
        """A box; the first line is its title. That of a frame stands at its top, others in the middle."""
        dash = ' stroke-dasharray="4 3"' if kind == "frame" else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{FILLS[kind]}" '
            f'stroke="{EDGE}"{dash}/>\n'
        )
        top = y + 18 if kind == "frame" else y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 16 * number, line, bold=not number, pale=bool(number))
        return Box(x, y, width, height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        bold: bool = False,
        pale: bool = False,
        halo: bool = False,
        at: str = "middle",
    ) -> None:
        """Words at a point; with a halo where an arrow may pass below them."""
        look = ' font-weight="600"' if bold else ""
        look += ' font-size="11.5"' if pale else ""
        under = f' stroke="{GROUND}" stroke-width="4"'
        for more in (under, "") if halo else ("",):
            self._parts.append(
                f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" fill="{PALE if pale else INK}"{look}{more}>'
                f"{escape(words)}</text>\n"
            )

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A bar of a chart."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{FILLS[kind]}" '
            f'stroke="{PALE}"/>\n'
        )

    def curve(self, points: list[tuple[float, float]]) -> None:
        """A line through points, each with a dot."""
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._parts.append(f'<path d="M{path}" fill="none" stroke="{PALE}" stroke-width="1.6"/>\n')
        for x, y in points:
            self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{INK}"/>\n')

    def arrow(
        self, tail: tuple[float, float], tip: tuple[float, float], words: str = "", *, dashed: bool = False
    ) -> None:
        """An arrow, with words above its middle."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        (x1, y1), (x2, y2) = tail, tip
        self._parts.append(
            f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" fill="none" stroke="{PALE}" stroke-width="1.4"'
            f'{dash} marker-end="url(#tip)"/>\n'
        )
        if words:
            beside = abs(x1 - x2) < 30
            at = (max(x1, x2) + 6, (y1 + y2) / 2 + 4) if beside else ((x1 + x2) / 2, (y1 + y2) / 2 - 6)
            self.text(*at, words, pale=True, halo=True, at="start" if beside else "middle")

    def lifelines(self, names: list[tuple[str, str]], left: int, step: int, height: int) -> list[float]:
        """The heads of a sequence, each a name and a kind, with their lines. Returns their places."""
        places = [float(left + step * number) for number in range(len(names))]
        for place, (name, kind) in zip(places, names, strict=True):
            self._parts.append(f'<path d="M{place:g} 46V{height}" stroke="{EDGE}" stroke-dasharray="2 3"/>\n')
            self.box(int(place) - 58, 14, 116, 32, name, kind=kind)
        return places
