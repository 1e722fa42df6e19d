"""Draw the paused holder: lease, pause, second holder, and the refused late write.

`python -m docs.pictures.paused_holder` writes paused-holder.svg. The times follow
`examples/paused.py`, which acts this out with real processes.
"""

from __future__ import annotations

from docs.pictures.svg import Picture

FIRST, SECOND, RESOURCE = 62, 150, 238
"""Heights of the three lines of time."""
BEGIN, PAUSE, EXPIRED, AWAKE, END = 84, 140, 236, 330, 432
"""Places of the events on the axis of time."""


def picture() -> Picture:
    """Draw three lines of time: two processes and the resource."""
    drawn = Picture(
        "A holder is paused past its lease; the resource refuses its late write", 300
    )
    drawn.words(
        10, 20, "The paused holder: only the fence refuses the late write", bold=True
    )
    for y, name in (
        (FIRST, "process 1"),
        (SECOND, "process 2"),
        (RESOURCE, "database"),
    ):
        drawn.words(10, y + 4, name, "dim")
        drawn.line((BEGIN - 10, y), (END, y), color="box", width=2)
    drawn.line((EXPIRED, 34), (EXPIRED, RESOURCE + 8), color="red", dashed=True)
    drawn.words(EXPIRED - 6, 44, "lease ends", "red", anchor="end")
    _first(drawn)
    _second(drawn)
    _resource(drawn)
    drawn.words(10, 292, "time", "dim")
    drawn.line((44, 288), (END, 288), color="line", arrow=True)
    return drawn


def _first(drawn: Picture) -> None:
    drawn.box(BEGIN, FIRST - 11, PAUSE - BEGIN, 22, "blue")
    drawn.words((BEGIN + PAUSE) / 2, FIRST + 4, "holds", "page", anchor="middle")
    drawn.box(PAUSE, FIRST - 11, AWAKE - PAUSE, 22, "box", border="line")
    drawn.words((PAUSE + EXPIRED) / 2, FIRST + 4, "paused", "dim", anchor="middle")
    drawn.words((EXPIRED + AWAKE) / 2, FIRST + 4, "paused", "dim", anchor="middle")
    drawn.words(BEGIN, FIRST + 28, "fence 7", "blue", bold=True)
    drawn.words(AWAKE - 6, FIRST - 16, "wakes up, writes", "blue")
    drawn.line(
        (AWAKE + 10, FIRST), (AWAKE + 10, RESOURCE - 16), color="blue", arrow=True
    )
    drawn.words(AWAKE + 18, FIRST + 28, "fence 7", "blue", bold=True)


def _second(drawn: Picture) -> None:
    drawn.box(PAUSE + 12, SECOND - 11, EXPIRED - PAUSE - 12, 22, "page", border="line")
    drawn.words((PAUSE + 12 + EXPIRED) / 2, SECOND + 4, "waits", "dim", anchor="middle")
    drawn.box(EXPIRED, SECOND - 11, 84, 22, "green")
    drawn.words(EXPIRED + 42, SECOND + 4, "holds", "page", anchor="middle")
    drawn.words(EXPIRED + 6, SECOND + 28, "fence 8", "green", bold=True)
    drawn.line(
        (EXPIRED + 66, SECOND + 11),
        (EXPIRED + 66, RESOURCE - 16),
        color="green",
        arrow=True,
    )


def _resource(drawn: Picture) -> None:
    drawn.box(EXPIRED + 18, RESOURCE - 14, 74, 28, "page", border="green")
    drawn.words(EXPIRED + 55, RESOURCE + 4, "8: written", "green", anchor="middle")
    drawn.box(AWAKE + 2, RESOURCE - 14, 98, 28, "page", border="red")
    drawn.words(AWAKE + 51, RESOURCE + 4, "7 < 8: refused", "red", anchor="middle")
    drawn.words(
        10, RESOURCE + 34, "remembers the highest fence that it has seen", "dim"
    )


if __name__ == "__main__":
    picture().write("paused-holder.svg")
