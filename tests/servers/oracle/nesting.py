"""The blocks inside a block: what PostgreSQL would undo where Oracle would not.

An exception that is handled undoes the failed statement in Oracle and everything since
BEGIN in PostgreSQL, row locks included. So in a guarded block only its last statement
may change or lock rows; anything else is refused, lest the double tells a lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.servers.oracle.errors import OracleError, unsupported


@dataclass(slots=True)
class _Frame:
    kind: str
    guarded: bool = False
    changes: list[bool] = field(default_factory=list[bool])


class Nesting:
    """Fed with the words of a block in their order, and with its statements."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._ends = False  # the word before ended something that this one names

    @property
    def depth(self) -> int:
        """How many blocks one is in; outside of the outermost 0."""
        return sum(frame.kind == "BEGIN" for frame in self._frames)

    def statement(self, *, changes: bool) -> None:
        """A statement of SQL, and whether it changes or locks rows."""
        if self._frames:
            self._frames[-1].changes.append(changes)

    def word(self, word: str, following: str) -> None:
        if self._ends:
            self._ends = False
        elif word in {"BEGIN", "IF", "LOOP", "CASE"}:
            self._frames.append(_Frame(word))
        elif word == "END":
            self._end()
            self._ends = following in {"IF", "LOOP", "CASE"}
        elif word == "EXCEPTION" and following == "WHEN":
            self._handlers()

    def _end(self) -> None:
        if not self._frames:
            raise OracleError(6550, "PLS-00103: Encountered the symbol END")
        ended = self._frames.pop()
        if self._frames:
            self._frames[-1].changes += ended.changes

    def _handlers(self) -> None:
        frame = self._frames[-1]
        if frame.kind != "BEGIN" or frame.guarded:
            raise OracleError(6550, "PLS-00103: Encountered the symbol EXCEPTION")
        if any(frame.changes[:-1]):
            raise unsupported(
                "a guarded block whose last statement is not the only one that "
                "changes or locks rows: PostgreSQL would undo the others"
            )
        frame.guarded = True
