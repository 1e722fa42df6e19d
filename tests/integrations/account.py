"""What the handlers of the test applications share: unprotected, but for the locks."""

from __future__ import annotations

import asyncio
from collections import Counter


class Account:
    """Counts by reading, waiting and writing back; tells what has happened."""

    def __init__(self) -> None:
        self.paid = 0
        self.inside = 0
        self.most_inside = 0
        self.highest = 0
        self.happened: Counter[str] = Counter()
        self.go_on = asyncio.Event()

    async def pay(self, work: float) -> int:
        """Loses updates, were two at it at a time."""
        self._comes()
        try:
            paid = self.paid
            await asyncio.sleep(work)
            self.paid = paid + 1
        finally:
            self.inside -= 1
        self.happened["paid"] += 1
        return self.paid

    async def stay(self) -> None:
        """Until the test says go on."""
        self._comes()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.happened["cancelled"] += 1
            raise
        finally:
            self.inside -= 1
        self.happened["stayed"] += 1

    def _comes(self) -> None:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
