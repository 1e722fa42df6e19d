"""Draw the decision between the stores; `python -m docs.pictures.which_store`.

Which waiters poll, and which stores many hosts share, is what the stores say of
themselves (``Capability``); tests/docs/test_pictures.py compares.
"""

from __future__ import annotations

from docs.pictures.svg import Picture

QUESTIONS = (
    ("Do all tasks run in one process?", "memory://", "for tests, too"),
    ("Do all processes run on one machine?", "sqlite:///path", "or file:///dir"),
    ("Do you run Redis or Valkey?", "redis://", "wakes waiters"),
    ("Do you run PostgreSQL?", "postgresql://", "wakes waiters"),
    ("Must it survive any node, and forget nothing?", "etcd://", "wakes waiters"),
    ("Do you run Cassandra?", "cassandra://", "waiters poll"),
    ("MariaDB, MySQL or Oracle?", "mariadb://, mysql://, oracle://", "waiters poll"),
)
"""A question, the store if the answer is yes, and a word on it."""

STEP, QUESTION = 66, 24


def picture() -> Picture:
    """Draw the questions, and the store that each leads to."""
    title = "Which store? Questions from top to bottom"
    drawn = Picture(title, 30 + STEP * len(QUESTIONS))
    for number, (question, store, word) in enumerate(QUESTIONS):
        y = 12 + number * STEP
        drawn.box(10, y, 270, QUESTION, "box", border="line")
        drawn.words(20, y + 16, question, bold=True)
        drawn.words(40, y + 46, "yes", "green")
        drawn.line((30, y + QUESTION), (30, y + 40), (36, y + 40), color="line")
        drawn.line((64, y + 42), (84, y + 42), color="green", arrow=True)
        drawn.words(90, y + 46, store, "blue", bold=True)
        drawn.words(430, y + 46, word, "dim", anchor="end")
        if number + 1 < len(QUESTIONS):
            drawn.line((16, y + QUESTION), (16, y + STEP), color="line", arrow=True)
    end = 18 + STEP * len(QUESTIONS)
    drawn.words(10, end, "A channel for hints wakes the waiters that poll.", "dim")
    return drawn


if __name__ == "__main__":
    picture().write("which-store.svg")
