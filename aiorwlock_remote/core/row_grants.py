"""Leases on a row lock: who of ours holds it, in one more column of the row.

The published columns say only how many hold the row. A fourth one, NULL in the rows of
other programs, lists our grants: a ticket, a mode, when it ends by the database's
clock, a fence. Each step reads the row and swaps all of it, if nobody has changed it
since. What the other columns say goes first: grants they do not leave room for are
void. Each change has a nonce, so that a late one finds another text and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, WRITE_LOCK, RowState
from aiorwlock_remote.core.ticket import Mode, holder_of

VERSION = "1"
MAX_GRANTS_TEXT = 4000
"""Characters: what the narrowest column that is asked for can hold."""
MAX_KEPT_REASON = 40
"""Characters of a reason by which it is known again."""


@dataclass(frozen=True, slots=True)
class RowGrant:
    """A lease on a row. ``expires``: microseconds of Unix time by the database."""

    ticket: str = field(repr=False)
    mode: Mode
    expires: int
    fence: int

    @property
    def holder(self) -> str:
        """What people see of the ticket."""
        return holder_of(self.ticket)


@dataclass(frozen=True, slots=True)
class RowGrants:
    """A row with our grants in it. ``last``: the highest fence. ``wrote``: our reason.

    ``nonce``: of the last change.
    """

    state: RowState
    grants: tuple[RowGrant, ...] = ()
    last: int = 0
    wrote: str = ""
    nonce: str = ""

    def grant(self, ticket: str) -> RowGrant | None:
        """The one of that ticket."""
        return next((g for g in self.grants if g.ticket == ticket), None)

    def valid(self) -> RowGrants:
        """Without the grants that the published columns leave no room for."""
        modes = {grant.mode for grant in self.grants}
        if modes == {Mode.READ}:
            fits = self.state.readers >= len(self.grants)
        else:
            fits = self.state.mark == WRITE_LOCK and self._is_ours()
        return self if fits else replace(self, grants=())

    def without(self, gone: Callable[[RowGrant], bool]) -> RowGrants:
        """What is left when these have unlocked it."""
        left = tuple(grant for grant in self.grants if not gone(grant))
        fewer = len(self.grants) - len(left)
        if not fewer:
            return self
        readers = max(0, self.state.readers - fewer)
        mark = READ_LOCK if readers else UNLOCK
        return replace(
            self, state=RowState(mark, readers, self.state.reason), grants=left
        )

    def kept(self, mine: RowGrant, expires: int) -> RowDecision:
        """With a grant that lives until then at least."""
        kept = replace(mine, expires=max(mine.expires, expires))
        grants = tuple(kept if grant is mine else grant for grant in self.grants)
        return RowDecision(replace(self, grants=grants), self.state, kept, held=True)

    def _is_ours(self) -> bool:
        # Another program's WriteLock after ours has its own reason. A column that is
        # too narrow may have cut ours.
        found, wrote = (
            self.state.reason[:MAX_KEPT_REASON].rstrip(),
            self.wrote[:MAX_KEPT_REASON].rstrip(),
        )
        return found == wrote or (bool(found) and wrote.startswith(found))


@dataclass(frozen=True, slots=True)
class RowDecision:
    """What a step on a ledger says. ``change``: to be swapped in; None: nothing is.

    ``grant``: what the ticket holds now; ``held``: whether it held something before.
    """

    change: RowGrants | None
    state: RowState
    grant: RowGrant | None = None
    held: bool = False


Decide = Callable[[RowGrants, int], RowDecision]
"""``decide(ledger, now)``: a step; microseconds of the database's clock."""


@dataclass(frozen=True, slots=True)
class TakeRow:
    """RLock or WLock with a lease of so many microseconds; repeatable by its ticket."""

    ticket: str = field(repr=False)
    mode: Mode
    lease: int
    reason: str

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        """Granted or not."""
        current = ledger.valid()
        mine = current.grant(self.ticket)
        if mine is not None and mine.expires > now:  # asked again
            return current.kept(mine, now + self.lease)
        current = current.without(lambda grant: grant.expires <= now)
        state = current.state
        free = state.mark == UNLOCK
        if not (free or (self.mode is Mode.READ and state.mark == READ_LOCK)):
            return RowDecision(None, state)
        joins = self.mode is Mode.READ and bool(current.grants)
        last = current.last if joins else max(current.last + 1, now)
        grant = RowGrant(self.ticket, self.mode, now + self.lease, last)
        readers = state.readers + (self.mode is Mode.READ)
        mark = READ_LOCK if readers else WRITE_LOCK
        change = replace(
            current,
            state=RowState(mark, readers, self.reason),
            grants=(*current.grants, grant),
            last=last,
            wrote=self.reason,
        )
        return RowDecision(change, change.state, grant)


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """RUnlock or WUnlock; repeated, it finds nothing to do."""

    ticket: str = field(repr=False)
    reason: str

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        """Whether it was held until now."""
        current = ledger.valid()
        mine = current.grant(self.ticket)
        if mine is None:
            return RowDecision(None, current.state)
        left = current.without(lambda grant: grant.ticket == self.ticket)
        state = replace(left.state, reason=self.reason)
        change = replace(left, state=state, wrote=self.reason)
        return RowDecision(change, state, held=mine.expires > now)


@dataclass(frozen=True, slots=True)
class RenewRow:
    """Its lease begins anew, if it has not ended."""

    ticket: str = field(repr=False)
    lease: int

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        """What it holds."""
        current = ledger.valid()
        mine = current.grant(self.ticket)
        if mine is None or mine.expires <= now:
            return RowDecision(None, current.state)
        return current.kept(mine, now + self.lease)


def dump_row_grants(ledger: RowGrants, nonce: str) -> str:
    """As it stands in the column."""
    grants = (
        f"{grant.ticket},{grant.mode},{grant.expires},{grant.fence}"
        for grant in ledger.grants
    )
    wrote = ledger.wrote[:MAX_KEPT_REASON].encode().hex()
    return ";".join((VERSION, nonce, str(ledger.last), wrote, *grants))


def load_row_grants(state: RowState, text: str | None) -> RowGrants | None:
    """What stands in the row; None: nothing that we have written."""
    if not text:
        return RowGrants(state)
    try:
        version, nonce, last, wrote, *grants = text.split(";")
        if version != VERSION:
            return None
        listed: list[RowGrant] = []
        for grant in grants:
            ticket, mode, expires, fence = grant.split(",")
            listed.append(RowGrant(ticket, Mode(mode), int(expires), int(fence)))
        reason = bytes.fromhex(wrote).decode()
        return RowGrants(state, tuple(listed), int(last), reason, nonce)
    except ValueError:
        return None
