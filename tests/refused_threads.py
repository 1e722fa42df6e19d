"""Threads that cannot be started, as where a process may have no more of them."""

from __future__ import annotations

import threading

import pytest


class RefusedThreads:
    """Refuses the next ``left`` threads whose name has ``part`` in it."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        part: str,
        left: int = 1,
        said: str = "can't start new thread",
    ) -> None:
        self.left = left
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if part in thread.name and self.left:
                self.left -= 1
                raise RuntimeError(said)
            start(thread)

        patch.setattr(threading.Thread, "start", refuse)
