"""Drive a coroutine by hand and do something at its k-th suspension."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class CancelAt:
    """Awaits ``coroutine``; at its k-th suspension calls ``cancel``.

    ``late``: not when it suspends but when it is about to be resumed, so that whatever
    it waited for has happened. ``suspensions`` counts them all.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        k: int,
        cancel: Callable[[], object],
        *,
        late: bool,
    ) -> None:
        self.suspensions = 0
        self._coroutine = coroutine
        self._k = k
        self._cancel = cancel
        self._late = late

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._coroutine.send
        argument: Any = None
        while True:
            try:
                trap = step(argument)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            now = self.suspensions == self._k
            if now and not self._late:
                self._cancel()
            try:
                step, argument = self._coroutine.send, (yield trap)
            except BaseException as exc:  # noqa: BLE001 - passed on to the coroutine
                step, argument = self._coroutine.throw, exc
            if now and self._late:
                self._cancel()
