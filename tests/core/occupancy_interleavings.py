"""Contenders of pending → using in a simulated store: every interleaving, or one.

A world is a value. Its steps are as small as a store can make them: a look reads one
record at a time, in any order, so it is not a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from aiorwlock_remote.core.occupancy import (
    FIRST_ACTION,
    Action,
    ActionResult,
    ContenderRecord,
    ExpiryAges,
    NextAction,
    next_action,
)

AGES = ExpiryAges(pending=10, using=10)
OLD = 99.0
LOOKS = (Action.LOOK_PENDING, Action.LOOK_USING, Action.CONFIRM)

Rule = Callable[[NextAction, ActionResult], NextAction]


class Contender(NamedTuple):
    """``move`` None: not interested. ``unread``: whose records it must look at."""

    move: NextAction | None = None
    unread: frozenset[int] = frozenset()
    found: tuple[ContenderRecord, ...] = ()
    crashed: bool = False

    @property
    def uses(self) -> bool:
        return (
            self.move is not None and self.move.do is Action.USING and not self.crashed
        )


class State(NamedTuple):
    """The records are (owner, old)."""

    contenders: tuple[Contender, ...]
    pendings: frozenset[tuple[int, bool]] = frozenset()
    usings: frozenset[tuple[int, bool]] = frozenset()
    crashes: int = 0
    agings: int = 0

    @property
    def violated(self) -> bool:
        """Whether two use the object, and no record of theirs was too old."""
        fresh = {owner for owner, old in self.usings if not old}
        both = [i for i, c in enumerate(self.contenders) if c.uses and i in fresh]
        return len(both) > 1

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the published table: what each contender has in the store."""
        return tuple(
            "using"
            if self.usings & {(i, False), (i, True)}
            else "pending"
            if self.pendings & {(i, False), (i, True)}
            else "none"
            for i in range(len(self.contenders))
        )

    @property
    def used(self) -> bool:
        return any(contender.uses for contender in self.contenders)


def pure(move: NextAction, answer: ActionResult) -> NextAction:
    """The protocol as it is."""
    return next_action(move, answer, AGES)


def confirming(move: NextAction, answer: ActionResult) -> NextAction:
    """The protocol for a shared mount."""
    return next_action(move, answer, AGES, confirm=True)


def early_return(move: NextAction, answer: ActionResult) -> NextAction:
    """As published for Redis: at a busy object a contender leaves its pending."""
    found = never_aged(move, answer)
    return NextAction(Action.BUSY) if found.then is Action.BUSY else found


def wrong_order(move: NextAction, answer: ActionResult) -> NextAction:
    """A contender that looks at using records first."""
    found = next_action(move, answer, AGES)
    if move.do is Action.WRITE:
        return NextAction(Action.LOOK_USING)
    if move.do is Action.LOOK_USING and found.do is Action.PROMOTE:
        return NextAction(Action.LOOK_PENDING)
    if move.do is Action.LOOK_PENDING and found.do is Action.LOOK_USING:
        return NextAction(Action.PROMOTE)
    return found


def never_aged(move: NextAction, answer: ActionResult) -> NextAction:
    """A contender that waits for dead ones for ever."""
    return next_action(move, answer, ExpiryAges(pending=OLD + 1, using=None))


@dataclass(frozen=True)
class Game:
    """What may happen. ``blind``: PROMOTE does not ask whether its pending is there.

    ``caches``: a first look at the usings may show none, as some time ago. ``agings``:
    so many records may grow old whose owners are only slow; the dead's always do.
    """

    rule: Rule = pure
    blind: bool = False
    caches: bool = False
    crashes: int = 0
    agings: int = 0

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Return everything that can happen next, and what it leads to."""
        for i, contender in enumerate(state.contenders):
            if contender.crashed:
                continue
            for name, after_it in self._steps_of(state, i, contender):
                yield f"{i} {name}", after_it
            if state.crashes < self.crashes and contender.move is not None:
                gone = contender._replace(crashed=True)
                yield f"{i} crashes", put(state, i, gone, crashes=1)
        yield from self._agings(state)

    def any_step(self, state: State, chance: Random) -> tuple[str, State]:
        """Return one step; a rare one, rarely."""
        acting = [i for i, c in enumerate(state.contenders) if not c.crashed]
        if not acting:
            return "nobody is left", state
        if chance.random() < 0.03:
            return chance.choice(list(self.steps(state)))
        i = chance.choice(acting)
        steps = list(self._steps_of(state, i, state.contenders[i]))
        what, state = chance.choice(steps)
        return f"{i} {what}", state

    def _agings(self, state: State) -> Iterator[tuple[str, State]]:
        for name in ("pendings", "usings"):
            records: frozenset[tuple[int, bool]] = getattr(state, name)
            for owner, old in records:
                if old:
                    continue
                dead = owner >= len(state.contenders) or state.contenders[owner].crashed
                if not dead and state.agings >= self.agings:
                    continue
                aged = records - {(owner, False)} | {(owner, True)}
                count = state.agings + (not dead)
                changed = (
                    state._replace(pendings=aged, agings=count)
                    if name == "pendings"
                    else state._replace(usings=aged, agings=count)
                )
                yield f"{owner} of {name} ages", changed

    def _steps_of(
        self, state: State, i: int, contender: Contender
    ) -> Iterator[tuple[str, State]]:
        move = contender.move
        if move is None:
            yield "begins", put(state, i, Contender(FIRST_ACTION))
            return
        if move.do in LOOKS:
            yield from self._looks(state, i, contender, move)
            return
        name = move.do.name.lower()
        for answer, changed in self._does(state, i, move):
            if move.do in (Action.USING, Action.BUSY):
                yield name, put(changed, i, Contender())
            else:
                yield name, self._next(changed, i, move, answer)

    def _next(
        self, state: State, i: int, move: NextAction, answer: ActionResult
    ) -> State:
        coming = self.rule(move, answer)
        unread: frozenset[int] = frozenset()
        if coming.do in LOOKS:
            # Ghosts (what a published program forgot) are numbered from 10.
            ghosts = {owner for owner, _ in state.pendings if owner >= 10}
            unread = frozenset(range(len(state.contenders))) - {i} | ghosts
        return put(state, i, Contender(coming, unread))

    def _looks(
        self, state: State, i: int, contender: Contender, move: NextAction
    ) -> Iterator[tuple[str, State]]:
        if not contender.unread:
            yield "has looked", self._next(state, i, move, contender.found)
            return
        shown = [state.pendings if move.do is Action.LOOK_PENDING else state.usings]
        if self.caches and move.do is Action.LOOK_USING:
            shown.append(frozenset())
        for records in shown:
            for other in contender.unread:
                found = contender.found
                for old in (False, True):
                    if (other, old) in records:
                        found += (ContenderRecord(str(other), OLD if old else 0.0),)
                looked = contender._replace(
                    unread=contender.unread - {other}, found=found
                )
                yield f"looks at {other}", put(state, i, looked)

    def _does(
        self, state: State, i: int, move: NextAction
    ) -> Iterator[tuple[ActionResult, State]]:
        mine = {(i, False), (i, True)}
        match move.do:
            case Action.WRITE:
                left = frozenset(
                    (owner + 10 if owner == i else owner, old)
                    for owner, old in state.pendings
                )
                yield None, state._replace(pendings=left | {(i, False)})
            case Action.DROP_PENDING:
                gone = {(int(r.who), True) for r in move.records}
                yield None, state._replace(pendings=state.pendings - gone)
            case Action.DROP_USING:
                gone = {(int(r.who), True) for r in move.records}
                yield None, state._replace(usings=state.usings - gone)
            case Action.PROMOTE if self.blind or state.pendings & mine:
                yield (
                    True,
                    state._replace(
                        pendings=state.pendings - mine,
                        usings=state.usings | {(i, False)},
                    ),
                )
            case Action.PROMOTE:
                yield False, state
            case Action.REMOVE | Action.USING:
                yield (
                    None,
                    state._replace(
                        pendings=state.pendings - mine,
                        usings=state.usings - mine,
                    ),
                )
            case _:
                yield None, state


def put(state: State, i: int, contender: Contender, *, crashes: int = 0) -> State:
    contenders = (*state.contenders[:i], contender, *state.contenders[i + 1 :])
    crashes += state.crashes
    return State(contenders, state.pendings, state.usings, crashes, state.agings)


@dataclass
class Explored:
    """Every reachable world, and the worlds each one leads to."""

    worlds: set[State]
    before: dict[State, list[State]]
    violated: list[State]

    def stuck(self) -> set[State]:
        """Return the worlds from which no contender can ever use the object again."""
        able = {state for state in self.worlds if state.used}
        waiting = list(able)
        while waiting:
            for earlier in self.before.get(waiting.pop(), ()):
                if earlier not in able:
                    able.add(earlier)
                    waiting.append(earlier)
        living = {w for w in self.worlds if not all(c.crashed for c in w.contenders)}
        return living - able


def explore(game: Game, contenders: int) -> Explored:
    """Follow all interleavings."""
    first = State(tuple(Contender() for _ in range(contenders)))
    found = Explored({first}, {}, [])
    waiting = [first]
    while waiting:
        state = waiting.pop()
        if state.violated:
            found.violated.append(state)
            continue
        for _, coming in game.steps(state):
            found.before.setdefault(coming, []).append(state)
            if coming not in found.worlds:
                found.worlds.add(coming)
                waiting.append(coming)
    return found
