"""SVG pictures that follow the reader's light or dark theme.

Texts are 12 px and larger at a width of 440, so that they can be read on a telephone.
Colours stand in one style sheet at the head of each picture, by the names in ``LIGHT``.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 440
LIGHT = {
    "page": "#ffffff",
    "text": "#1f2328",
    "dim": "#59636e",
    "line": "#8c959f",
    "box": "#eef1f4",
    "blue": "#0b62c4",
    "red": "#c4222c",
    "green": "#19713a",
    "orange": "#a04b00",
    "purple": "#7a3fc4",
}
DARK = {
    "page": "#0d1117",
    "text": "#e6edf3",
    "dim": "#9aa4af",
    "line": "#6e7681",
    "box": "#1c232b",
    "blue": "#6cb2ff",
    "red": "#ff8a83",
    "green": "#56d273",
    "orange": "#f0a35a",
    "purple": "#c9a2ff",
}


class Picture:
    """Collects the elements of a picture; ``text()`` returns the SVG.

    A colour is a name in ``LIGHT``. The origin is the upper left corner.
    """

    def __init__(self, title: str, height: float, width: float = WIDTH) -> None:
        self._title, self._width, self._height = title, width, height
        self._elements: list[str] = []
        self._styles: list[str] = []

    def add(self, element: str) -> None:
        self._elements.append(element)

    def style(self, rule: str) -> None:
        self._styles.append(rule)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        color: str = "text",
        *,
        size: int = 12,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write a line; ``anchor``: ``start``, ``middle`` or ``end`` is at ``x``."""
        weight = ' font-weight="600"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.add(
            f'<text x="{x:g}" y="{y:g}" class="{color}" font-size="{size}"{place}'
            f"{weight}>{escape(text)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: str = "box",
        *,
        border: str = "",
        radius: float = 5,
    ) -> None:
        edge = f" edge-{border}" if border else ""
        self.add(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            f' rx="{radius:g}" class="{color}{edge}"/>'
        )

    def line(
        self,
        *points: tuple[float, float],
        color: str = "line",
        arrow: bool = False,
        dashed: bool = False,
        width: float = 1.5,
    ) -> None:
        places = " ".join(f"{x:g},{y:g}" for x, y in points)
        head = f' marker-end="url(#{color})"' if arrow else ""
        gaps = ' stroke-dasharray="4 3"' if dashed else ""
        self.add(
            f'<polyline points="{places}" class="edge-{color}" fill="none"'
            f' stroke-width="{width:g}"{head}{gaps}/>'
        )

    def text(self) -> str:
        used = [name for name in LIGHT if f"#{name})" in "".join(self._elements)]
        markers = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" markerWidth="7" markerHeight="7"'
            f' markerUnits="userSpaceOnUse" refX="7" refY="4" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" class="{name}"/></marker>'
            for name in used
        )
        dark = _colours(DARK)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {self._width:g} {self._height:g}"'
            f' aria-label="{escape(self._title)}">\n'
            f"<title>{escape(self._title)}</title>\n"
            f"<style>text{{font-family:system-ui,-apple-system,Segoe UI,Roboto,"
            f"DejaVu Sans,sans-serif}}{_colours(LIGHT)}\n"
            f"@media (prefers-color-scheme:dark){{{dark}}}"
            f"{''.join(self._styles)}</style>\n"
            f"<defs>{markers}</defs>\n"
            f'<rect width="{self._width:g}" height="{self._height:g}" class="page"/>\n'
            + "\n".join(self._elements)
            + "\n</svg>\n"
        )

    def write(self, name: str) -> None:
        (FOLDER / name).write_text(self.text(), encoding="utf-8")


def _colours(theme: dict[str, str]) -> str:
    return "".join(
        f".{name}{{fill:{color}}}.edge-{name}{{stroke:{color}}}"
        for name, color in theme.items()
    )
