"""Leases on a row lock by their rules alone: random histories with other programs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aiorwlock_remote.core.row import (
    READ_LOCK,
    UNLOCK,
    WRITE_LOCK,
    RowState,
    parse_row_state,
)
from aiorwlock_remote.core.row_grants import (
    ReleaseRow,
    RenewRow,
    RowDecision,
    RowGrants,
    TakeRow,
    dump_row_grants,
    load_row_grants,
)
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode

STEPS, SEEDS = 400, 50
FREE = RowState(UNLOCK, 0)


def put(ledger: RowGrants, decision: RowDecision) -> RowGrants:
    """Store the row, and read it back."""
    if decision.change is None:
        return ledger
    again = load_row_grants(
        decision.change.state, dump_row_grants(decision.change, "n")
    )
    assert again is not None
    assert replace(again, nonce="") == replace(decision.change, nonce="")
    return again


class Theirs:
    """Another program: the published rules, and what it holds itself."""

    def __init__(self) -> None:
        self.reads = 0
        self.writes = False

    def step(self, state: RowState, chance: random.Random) -> RowState:
        if self.writes:
            self.writes = False
            return RowState(UNLOCK, 0, "theirs")
        if self.reads and chance.random() < 0.5:
            self.reads -= 1
            readers = state.readers - 1
            return RowState(READ_LOCK if readers else UNLOCK, readers, "theirs")
        if state.mark == UNLOCK and chance.random() < 0.3:
            self.writes = True
            return RowState(WRITE_LOCK, 0, "theirs")
        if state.mark != WRITE_LOCK:
            self.reads += 1
            return RowState(READ_LOCK, state.readers + 1, "theirs")
        return state


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_stories(seed: int) -> None:
    """A writer is alone, every count is right, and fences rise, whatever the clock."""
    chance, theirs = random.Random(seed), Theirs()
    ledger, now, highest = RowGrants(FREE), 1_000, 0
    modes: dict[str, Mode] = {}
    for number in range(STEPS):
        now += chance.randrange(5)
        if chance.random() < 0.05:  # another server has taken over
            now += chance.randrange(-60, 60)
        known = list(modes) or ["nobody"]
        ticket = chance.choice(known)
        match chance.randrange(5):
            case 0:
                new, mode = f"t{number}", chance.choice(list(LOCK_MODES))
                live = [g for g in ledger.valid().grants if g.expires > now]
                decision = TakeRow(new, mode, 20, "ours")(ledger, now)
                ledger = put(ledger, decision)
                if decision.grant is not None:
                    modes[new] = mode
                    fence = decision.grant.fence
                    # Readers of one phase have one fence; each next phase has a higher.
                    assert fence == highest if live else fence > highest
                    highest = fence
                    again = TakeRow(new, mode, 20, "ours")(ledger, now + 1)
                    assert again.grant == replace(decision.grant, expires=now + 21)
                    assert put(ledger, again).state == ledger.state
            case 1:
                ledger = put(ledger, ReleaseRow(ticket, "done")(ledger, now))
                modes.pop(ticket, None)
                assert ReleaseRow(ticket, "done")(ledger, now).change is None
            case 2:
                decision = RenewRow(ticket, 20)(ledger, now)
                held = ledger.grant(ticket)
                assert decision.held == (held is not None and held.expires > now)
                if decision.grant is not None and held is not None:
                    assert decision.grant.expires == max(held.expires, now + 20)
                ledger = put(ledger, decision)
            case _:
                ledger = replace(ledger, state=theirs.step(ledger.state, chance))
        ours = ledger.valid().grants
        state = ledger.state
        assert parse_row_state((state.mark, state.readers, "")) is not None
        live = [grant for grant in ours if grant.expires > now]
        writers = [grant for grant in live if grant.mode is Mode.WRITE]
        if writers or theirs.writes:
            assert len(live) + theirs.writes + theirs.reads == 1
            assert state.mark == WRITE_LOCK
        elif not any(grant.mode is Mode.WRITE for grant in ours):
            assert state.readers == len(ours) + theirs.reads


def test_grants_beyond_the_columns_are_void() -> None:
    """A void grant is not given back: the row's lock is another program's."""
    taken = TakeRow("a", Mode.READ, 20, "ours")(RowGrants(FREE), 0).change
    assert taken is not None
    two = TakeRow("b", Mode.READ, 20, "ours")(taken, 0).change
    assert two is not None
    fewer = replace(two, state=RowState(READ_LOCK, 1, "theirs"))
    for ticket in "ab":
        assert ReleaseRow(ticket, "")(fewer, 1) == RowDecision(None, fewer.state)
        assert RenewRow(ticket, 20)(fewer, 1).grant is None
    assert TakeRow("c", Mode.WRITE, 20, "")(fewer, 1000).change is None


def test_a_writer_is_known_by_its_reason() -> None:
    """The end of our lease does not free another program's later lock."""
    ours = TakeRow("a", Mode.WRITE, 20, "books " * 30)(RowGrants(FREE), 0).change
    assert ours is not None
    cut = replace(ours, state=RowState(WRITE_LOCK, 0, ours.state.reason[:30]))
    theirs = replace(ours, state=RowState(WRITE_LOCK, 0, "theirs"))
    later = TakeRow("b", Mode.WRITE, 20, "")
    assert later(ours, 100).grant is not None
    assert later(cut, 100).grant is not None
    assert later(theirs, 100).grant is None
    assert ReleaseRow("a", "")(theirs, 1).change is None


def test_a_grant_is_over_at_its_very_end() -> None:
    taken = TakeRow("a", Mode.WRITE, 20, "ours")(RowGrants(FREE), 1_000)
    assert taken.change is not None
    assert RenewRow("a", 20)(taken.change, 1_020) == RowDecision(
        None, taken.change.state
    )
    assert not ReleaseRow("a", "")(taken.change, 1_020).held
    again = TakeRow("a", Mode.WRITE, 20, "ours")(taken.change, 1_020)
    assert again.grant is not None
    assert not again.held
    assert again.grant.fence == 1_020


def test_a_fence_is_at_least_the_clock() -> None:
    """It rises, too, if the column with the last one was emptied."""
    for mode in LOCK_MODES:
        first = TakeRow("a", mode, 20, "ours")(RowGrants(FREE), 1_000).grant
        assert first is not None
        assert first.fence == 1_000
