"""What happened to locks in a run, written down so that a judge can decide on it.

Every process writes one file of JSON lines. A line is written before a call ("ask",
"releasing") and after its outcome, so a killed process leaves no call unmentioned and
at most one torn line, its last::

    with History("worker-1.jsonl") as history:
        attempt = history.ask("catalog,7", "W")
        held = await lock.writer.acquire()
        attempt.granted(fence=held.fence, until=now() + round(held.expires_in * 1e9))
        attempt.access(step=1, serial=ledger.write(held.fence), until=attempt.until)
        attempt.releasing(until=attempt.until)
        await held.release()
        attempt.released(ok=True)
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from aiorwlock_remote.testing.events import (
    Access,
    Ask,
    Died,
    Event,
    Failed,
    Granted,
    Lost,
    Mode,
    Refused,
    Released,
    Releasing,
    Unknown,
    decoded,
    encoded,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Attempt", "History", "now", "read"]


def read(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Event]:
    """The events of all files, file by file, without the torn last line of a file.

    Raises:
        ValueError: any other line is no event; a history with holes proves nothing.
    """
    for path in paths:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    event = decoded(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        break
                    raise ValueError(f"{path}:{number}: {error}") from error
                yield event


@final
class History:
    """One process's file. A line is in the file when the method that writes it returns.

    An existing file is continued. Threads may share a History, processes may not.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, process: str | None = None
    ) -> None:
        self.process: str = process or str(os.getpid())
        self._path = Path(path)
        self._drop_torn_line()
        # Unbuffered and O_APPEND: one line is one write, whole or not there.
        self._file = self._path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<History {str(self._path)!r} of process {self.process}>"

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def write(self, event: Event) -> None:
        """Append `event`; OSError if it could not be written whole."""
        line = encoded(event)
        if self._file.write(line) != len(line):
            raise OSError(f"{self._path}: short write")

    def ask(self, resource: str, mode: Mode, *, holder: str | None = None) -> Attempt:
        """Note that an acquire is about to be called; tell the Attempt what follows.

        `holder` is a fresh name unless given.
        """
        return Attempt(self, resource, mode, holder or secrets.token_hex(6))

    def died(self, process: str) -> None:
        """Note that `process`, another one, is dead by now."""
        self.write(Died(process=process, at=now()))

    def _drop_torn_line(self) -> None:
        """Cut off what a killed process left, before the next line is glued to it."""
        if self._path.is_file():
            text = self._path.read_bytes()
            os.truncate(self._path, text.rfind(b"\n") + 1)


@final
class Attempt:
    """One call of acquire and what follows from it; each method writes one line.

    `until` is the local deadline last told, renewals included: nanoseconds of `now()`,
    None = never. Call `granted` at once when the acquire has returned: what counts is
    the time of that call.
    """

    def __init__(
        self, history: History, resource: str, mode: Mode, holder: str
    ) -> None:
        self.fence: int = 0
        self.until: int | None = None
        self._history = history
        self._who = (history.process, resource, holder)
        self._mode: Mode = mode
        self._asked_at = self._leaving_at = now()
        history.write(Ask(*self._who, self._asked_at, mode))

    @property
    def holder(self) -> str:
        """The name of this attempt."""
        return self._who[2]

    def granted(self, *, fence: int, until: int | None) -> None:
        """The acquire succeeded."""
        at = now()
        self.fence, self.until = fence, until
        self._history.write(
            Granted(*self._who, at, self._asked_at, self._mode, fence, until)
        )

    def refused(self) -> None:
        """Busy, or not granted in time."""
        self._history.write(Refused(*self._who, now(), self._asked_at))

    def failed(self) -> None:
        """An error that proves that nothing was granted."""
        self._history.write(Failed(*self._who, now(), self._asked_at))

    def unknown(self) -> None:
        """An error that leaves open whether it was granted."""
        self._history.write(Unknown(*self._who, now(), self._asked_at))

    def access(self, *, step: int, serial: int | None, until: int | None) -> None:
        """The resource answered to the fence; see `Access`."""
        self.until = until
        self._history.write(
            Access(*self._who, now(), self._mode, self.fence, step, serial, until)
        )

    def releasing(self, *, until: int | None) -> None:
        """The release is about to be called."""
        self.until, self._leaving_at = until, now()
        self._history.write(Releasing(*self._who, self._leaving_at, until))

    def released(self, *, ok: bool | None) -> None:
        """The release is over; see `Released` for `ok`."""
        self._history.write(Released(*self._who, now(), self._leaving_at, ok))

    def lost(self, reason: str) -> None:
        """The lock told that it is lost."""
        self._history.write(Lost(*self._who, now(), reason))
