"""What can be made to go wrong, and what is counted, for one user at a time.

Tests share a server and have a user each: the faults of one are nobody else's.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.servers.oracle.requests import Call

When = Literal["before", "after"]

#: ``drop`` closes the connection, ``error`` answers with one, ``kill`` ends the session
#: as an administrator does, ``silence`` answers nothing any more, ``delay`` waits, and
#: ``stop`` waits to be let go.
Deed = Literal["drop", "error", "kill", "silence", "delay", "stop"]

#: Which way nothing goes: what the client sends, what the server answers, or both.
Hole = Literal["", "in", "out", "both"]


class Counted(NamedTuple):
    """One round trip: by which session, which function, with which statement."""

    session: int
    function: int
    statement: str


@dataclass(slots=True, eq=False)
class Rule:
    """What happens to calls whose statement contains a text.

    ``when``: before the call is executed, or after (a commit included) and before it
    is answered. ``times``: how often, 0 for always.
    """

    when: When
    do: Deed
    text: str = ""
    times: int = 1
    session: int | None = None
    code: int = 0
    seconds: float = 0.0
    number: int = field(default_factory=itertools.count(1).__next__)
    met: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def meets(self, when: When, session: int, call: Call) -> bool:
        """Whether it is this call's turn, which then is used up."""
        if (
            self.when != when
            or (self.session is not None and self.session != session)
            or self.text.upper() not in call.sql.upper()
            or (self.times and self.met >= self.times)
        ):
            return False
        self.met += 1
        self.reached.set()
        return True


class Faults:
    """Of one user.

    ``latency``: seconds added to each round trip. ``late_errors``: errors are announced
    by a mark as servers before 23ai may do it.
    """

    def __init__(self) -> None:
        self.latency: float = 0.0
        self.late_errors: bool = False
        self.rules: list[Rule] = []
        self.calls: list[Counted] = []
        self._open_in = asyncio.Event()
        self._open_out = asyncio.Event()
        self.hole = ""

    @property
    def hole(self) -> Hole:
        return self._hole

    @hole.setter
    def hole(self, hole: Hole) -> None:
        self._hole: Hole = hole
        for event, way in ((self._open_in, "in"), (self._open_out, "out")):
            if hole in {way, "both"}:
                event.clear()
            else:
                event.set()

    async def way_in(self) -> None:
        """Waits while nothing that clients send arrives."""
        await self._open_in.wait()

    async def way_out(self) -> None:
        """Waits while nothing arrives at clients."""
        await self._open_out.wait()

    def rule(self, when: When, session: int, call: Call) -> Rule | None:
        """The first that this call meets."""
        return next((r for r in self.rules if r.meets(when, session, call)), None)

    def count(self, session: int, call: Call) -> None:
        self.calls.append(Counted(session, call.function, call.sql))

    def clear(self) -> None:
        """All well again; who was stopped goes on."""
        for rule in self.rules:
            rule.let_go.set()
        self.rules.clear()
        self.calls.clear()
        self.latency, self.late_errors, self.hole = 0.0, False, ""
