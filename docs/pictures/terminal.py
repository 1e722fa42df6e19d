"""Record a command in a terminal, and draw its screens as an animated SVG.

The picture shows one screen after the other; where SVG is not animated, the last one
alone. It needs fonts that every browser has, and follows the reader's light or dark
theme.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from itertools import groupby

from docs.pictures.svg import DARK, LIGHT

CELL_WIDTH, LINE_HEIGHT, MARGIN, TITLE_HEIGHT = 8.4, 19, 16, 34
COLORS = {"31": "red", "32": "green"}
"""Colours of the SGR codes that the commands use."""

Style = frozenset[str]
Cell = tuple[str, Style]
Screen = list[list[Cell]]

FRAME_SECONDS, END_SECONDS = 1.8, 9.0
"""Seconds for which the picture shows a screen, and the last one."""

_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Recording:
    """A command that runs in a terminal of its own.

    ``process``: the command; ``written()`` yields all that it has written so far, as it
    grows, until it ends.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], terminal: int, prompt: str
    ) -> None:
        self.process = process
        self._terminal, self._prompt = terminal, prompt

    def written(self) -> Iterator[str]:
        data = b""
        # Linux reports the end of a terminal as an error.
        with suppress(OSError):
            while more := os.read(self._terminal, 1 << 16):
                data += more
                yield self._prompt + data.decode(errors="ignore")


@contextmanager
def recording(
    command: Sequence[str], shown: str, columns: int, lines: int
) -> Iterator[Recording]:
    """Run a command in a terminal of this size; ``shown``: what one would type."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        yield Recording(process, master, f"\x1b[2m$\x1b[0m \x1b[1m{shown}\x1b[0m\r\n")


def screen(written: str) -> Screen:
    """Return the lines of the terminal after all that was written to it."""
    lines: Screen = [[]]
    row = column = 0
    style: Style = frozenset()
    for code, letter, control, text in _TOKEN.findall(written):
        if control == "\n":
            row += 1
        elif control == "\r":
            column = 0
        elif letter == "A":
            row = max(0, row - int(code or 1))
        elif letter == "K":
            lines[row] = []
        elif letter == "m":
            codes = [part for part in code.split(";") if part not in {"", "0"}]
            style = frozenset(codes) if not code or code[0] == "0" else style | {*codes}
        lines += [[] for _ in range(row + 1 - len(lines))]
        for character in text:
            line = lines[row]
            line += [(" ", frozenset())] * (column + 1 - len(line))
            line[column] = character, style
            column += 1
    while lines and not any(character.strip() for character, _ in lines[-1]):
        lines.pop()
    return lines


def draw(frames: Sequence[Screen], title: str, columns: int) -> Iterator[str]:
    """Yield the lines of the SVG."""
    width = round(2 * MARGIN + columns * CELL_WIDTH)
    height = TITLE_HEIGHT + 2 * MARGIN + max(map(len, frames)) * LINE_HEIGHT
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-label="{title}">'
    )
    yield f"<title>{title}</title>"
    yield (
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        f"white-space:pre}}{_theme(LIGHT)}.frame{{visibility:hidden}}"
        ".frame:last-of-type{visibility:visible}"
    )
    yield f"@media (prefers-color-scheme:dark){{{_theme(DARK)}}}"
    yield "@media (prefers-reduced-motion:no-preference){"
    yield from _animation(len(frames))
    yield "}</style>"
    yield (
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
        f' class="window"/>'
    )
    for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{22 + 20 * number}" cy="20" r="6" fill="{color}"/>'
    for number, lines in enumerate(frames):
        yield f'<g class="frame" id="f{number}">'
        for row, line in enumerate(lines):
            yield from _line(line, TITLE_HEIGHT + MARGIN + row * LINE_HEIGHT)
        yield "</g>"
    yield "</svg>"


def _animation(count: int) -> Iterator[str]:
    """Yield the styles that show one frame after the other, the last one longest."""
    total = (count - 1) * FRAME_SECONDS + END_SECONDS
    for number in range(count):
        begin = 100 * number * FRAME_SECONDS / total
        end = 100 * (number + 1) * FRAME_SECONDS / total if number < count - 1 else 100
        yield (
            f"@keyframes k{number}{{0%{{visibility:hidden}}"
            f"{begin:.2f}%{{visibility:visible}}{end:.2f}%{{visibility:hidden}}}}"
            f"#f{number}{{animation:k{number} {total:.1f}s step-end infinite}}"
        )


def _line(line: list[Cell], y: int) -> Iterator[str]:
    column = 0
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in cells)
        # Place and length are given for each group of words: columns align in any font.
        for found in re.finditer(r"\S+(?: \S+)*", text):
            start, length = column + found.start(), len(found[0])
            yield (
                f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" y="{y}"'
                f' textLength="{length * CELL_WIDTH:.1f}"'
                f' lengthAdjust="spacingAndGlyphs"{_attributes(style)}>'
                f"{escape(found[0])}</text>"
            )
        column += len(text)


def _theme(colors: dict[str, str]) -> str:
    named = "".join(f".{name}{{fill:{colors[name]}}}" for name in COLORS.values())
    edge = f"stroke:{colors['line']}"
    return (
        f"text{{fill:{colors['text']}}}.window{{fill:{colors['page']};{edge}}}{named}"
    )


def _attributes(style: Style) -> str:
    color = next((COLORS[code] for code in style if code in COLORS), None)
    return (
        (f' class="{color}"' if color else "")
        + (' font-weight="700"' if "1" in style else "")
        + (' opacity=".6"' if "2" in style else "")
    )
