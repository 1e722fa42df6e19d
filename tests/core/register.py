"""A protected resource that refuses old fences, and records its accesses.

It refuses a fence below the highest it has seen, accepts an equal one, and is raised by
reads, too. The accesses it accepted must look as if no session had overlapped another.
"""

from __future__ import annotations

from aiorwlock_remote.core.ticket import Mode


class Register:
    """Accepts or refuses accesses; raises AssertionError if a session was invaded."""

    def __init__(self) -> None:
        self.highest = 0
        self.refused = 0
        self._minutes: list[tuple[str, Mode]] = []
        self._last: dict[str, int] = {}

    def access(self, session: str, mode: Mode, fence: int) -> bool:
        """Read or write in a session (a ticket); return whether it was accepted."""
        if fence < self.highest:
            self.refused += 1
            return False
        self.highest = fence
        since = self._last.get(session, len(self._minutes))
        for other, kind in self._minutes[since:]:
            if other != session and Mode.WRITE in (mode, kind):
                raise AssertionError(f"{other} ({kind}) inside {session} ({mode})")
        self._minutes.append((session, mode))
        self._last[session] = len(self._minutes)
        return True
