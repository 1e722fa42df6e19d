"""Draw why a transaction has to end inside of its lock.

`python -m docs.pictures.lock_and_transaction` writes lock-and-transaction.svg: two
requests that add one to a counter, above with a lock that is released before the
commit, below with the transaction inside of the lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from docs.pictures.svg import Picture

RIGHT, BAR = 430, 20


FOUND = 7
"""What the counter is before both."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Request:
    """A request: from where to where it has its lock, and its transaction runs."""

    lock: Span
    transaction: Span

    def reads(self, *before: Request) -> int:
        """Return what it finds: others count if they have committed when it begins."""
        begins = self.transaction[0]
        seen = [other for other in before if other.transaction[1] <= begins]
        return FOUND + len(seen)


OUTSIDE = (
    Request(lock=(34, 160), transaction=(42, 260)),
    Request(lock=(166, 300), transaction=(174, 400)),
)
INSIDE = (
    Request(lock=(34, 230), transaction=(42, 222)),
    Request(lock=(236, 430), transaction=(244, 422)),
)


def picture() -> Picture:
    """Draw both orders, one above the other."""
    drawn = Picture("A transaction that outlives its lock, and one inside of it", 302)
    _order(drawn, 8, "The lock is released before the commit", OUTSIDE, "red")
    _order(drawn, 158, "The transaction ends inside of the lock", INSIDE, "green")
    return drawn


def _order(
    drawn: Picture, top: float, what: str, requests: tuple[Request, ...], color: str
) -> None:
    first, second = requests
    lost = 2 - (second.reads(first) + 1 - FOUND)
    drawn.words(10, top + 14, what, color, size=13, bold=True)
    told = f"{lost} change lost" if lost else "both counted"
    drawn.words(RIGHT, top + 14, told, color, size=13, anchor="end", bold=True)
    for number, request in enumerate(requests):
        y = top + 26 + number * 56
        reads = request.reads(*requests[:number])
        stale = reads != FOUND + number
        drawn.words(10, y + 27, "AB"[number], bold=True, size=14)
        begins, ends = request.lock
        drawn.box(begins, y, ends - begins, BAR, "box", border="blue")
        drawn.words(begins + 8, y + 14, "lock", "blue")
        begins, ends = request.transaction
        drawn.box(begins, y + BAR + 3, ends - begins, BAR, "box", border="orange")
        drawn.words(begins + 8, y + 37, f"reads {reads}", "red" if stale else "text")
        middle = (begins + ends) / 2 - 2
        drawn.words(middle, y + 37, f"writes {reads + 1}", anchor="middle")
        drawn.words(ends - 8, y + 37, "commits", "orange", anchor="end")
    at = first.transaction[1]
    drawn.line((at, top + 26 + 43), (at, top + 26 + 102), color="orange", dashed=True)


if __name__ == "__main__":
    picture().write("lock-and-transaction.svg")
