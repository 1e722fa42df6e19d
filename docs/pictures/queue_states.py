"""Draw the states of a ``ModeQueue``, from the table that the code itself uses.

`python -m docs.pictures.queue_states` writes queue-states.svg. The states and steps are
those of ``aiorwlock_remote.core.queue_states``; none is written down here.
"""

from __future__ import annotations

from aiorwlock_remote.core.queue_states import (
    TRANSITIONS,
    Entry,
    Event,
    Request,
    States,
)
from docs.pictures.svg import Picture

CAUSES = (
    ("blue", "a request is held back, or sent", (Event.HOLD, Event.ASK, Event.CONFIRM)),
    (
        "green",
        "the reply comes",
        (Event.REPLY_PLACED, Event.REPLY_NOT_PLACED, Event.REPLY_NOT_HELD),
    ),
    ("orange", "the request failed", (Event.LOST, Event.FAILED)),
    ("purple", "no task waits any more", (Event.EMPTIED,)),
)
"""Colour, words, and the events that are meant."""

LEFT, TOP, ROW = 10, 78, 36
NAMES, RIGHT = 156, 432
"""The width of the column with the states, and where the arrows end."""


def rows() -> list[States]:
    """Return the pairs of states, by what is known of the entry."""
    entries, requests = list(Entry), list(Request)
    return sorted(
        TRANSITIONS, key=lambda pair: (entries.index(pair[0]), requests.index(pair[1]))
    )


def arrows() -> list[tuple[str, States, States]]:
    """Return the colour of each step, and the states before and after."""
    return [
        (color, before, after)
        for color, _, events in CAUSES
        for before in rows()
        for after in rows()
        if before != after
        if after in [TRANSITIONS[before].get(event) for event in events]
    ]


def picture() -> Picture:
    """Draw the states as rows, and each step as an arrow from one row to another."""
    heights = {pair: TOP + 14 + ROW * number for number, pair in enumerate(rows())}
    drawn = Picture(
        "The states of a ModeQueue: the entry in the store, and the request",
        TOP + ROW * len(heights),
    )
    for number, (color, words, _) in enumerate(CAUSES):
        drawn.box(LEFT, 10 + number * 16, 10, 10, color, radius=2)
        drawn.words(LEFT + 17, 19 + number * 16, words, color, size=12)
    for (entry, request), y in heights.items():
        drawn.line((LEFT + NAMES, y), (430, y), color="box", width=2)
        drawn.box(LEFT, y - 13, NAMES, 26, "box", border="line")
        words = f"{entry}, {request}"
        drawn.words(LEFT + NAMES / 2, y + 4, words, anchor="middle", size=12)
    steps = arrows()
    for number, (color, before, after) in enumerate(steps, 1):
        x = LEFT + NAMES + number * (RIGHT - LEFT - NAMES) / (len(steps) + 1)
        begin, end = heights[before], heights[after]
        tip = end + (1 if end < begin else -1)
        drawn.box(x - 2.5, begin - 2.5, 5, 5, color, radius=2.5)
        drawn.line((x, begin), (x, tip), color=color, arrow=True)
    return drawn


if __name__ == "__main__":
    picture().write("queue-states.svg")
