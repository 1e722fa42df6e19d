"""Leases on a row lock: our grants, listed in one more column of the row.

The published columns say only how many readers hold the row. A fourth column, NULL in
rows that only other programs lock, lists our grants: ticket, mode, end by the
database's clock, fence. Each step reads the row, and writes it only if nothing has
changed since.

* The published columns win: grants for which they leave no room are void
  (test_grants_beyond_the_columns_are_void).
* A writer's grant is ours only while the row has our reason: another program's WLock
  after ours has its own (test_a_writer_is_known_by_its_reason).
* Each change has a nonce, so that a late one finds another text and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, WRITE_LOCK, RowState
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.value import replace, value

VERSION = "1"
# Characters in the narrowest column that our schema asks for.
MAX_GRANTS_TEXT = 4000
# Characters of a reason that are compared with the row's.
MAX_KEPT_REASON = 40


@value
class RowGrant:
    """A grant listed in a row; ``expires``: microseconds of the database's clock."""

    ticket: str = field(repr=False)
    mode: Mode
    expires: int
    fence: int

    @property
    def holder(self) -> str:
        return holder_of(self.ticket)


@value
class RowGrants:
    """A row's lock state, and the grants of this library listed in one of its columns.

    ``last``: the highest fence given out. ``wrote``: the reason that this library wrote
    last. ``nonce``: random text of the last change.
    """

    state: RowState
    grants: tuple[RowGrant, ...] = ()
    last: int = 0
    wrote: str = ""
    nonce: str = ""

    def grant(self, ticket: str) -> RowGrant | None:
        return next((g for g in self.grants if g.ticket == ticket), None)

    def valid(self) -> RowGrants:
        """Return the row without our grants if its mark or count contradicts them."""
        # Another program may have unlocked the row under us: then our grants are void,
        # and must not be given back a second time.
        modes = {grant.mode for grant in self.grants}
        if modes == {Mode.READ}:
            fits = self.state.readers >= len(self.grants)
        else:
            fits = self.state.mark == WRITE_LOCK and self._is_ours()
        return self if fits else replace(self, grants=())

    def without(self, gone: Callable[[RowGrant], bool]) -> RowGrants:
        """Return the row after a release of the grants for which ``gone`` is True."""
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
        """Return the decision to extend the grant ``mine``, to ``expires`` or later."""
        kept = replace(mine, expires=max(mine.expires, expires))
        grants = tuple(kept if grant is mine else grant for grant in self.grants)
        return RowDecision(replace(self, grants=grants), self.state, kept, held=True)

    def _is_ours(self) -> bool:
        # A column that is too narrow may have cut our reason.
        found, wrote = (
            self.state.reason[:MAX_KEPT_REASON].rstrip(),
            self.wrote[:MAX_KEPT_REASON].rstrip(),
        )
        return found == wrote or (bool(found) and wrote.startswith(found))


@value
class RowDecision:
    """What a step on a row decides.

    ``change``: the row to write, None if nothing changes. ``grant``: what the ticket
    holds after the step. ``held``: whether it had a grant before.
    """

    change: RowGrants | None
    state: RowState
    grant: RowGrant | None = None
    held: bool = False


Decide = Callable[[RowGrants, int], RowDecision]
"""``decide(row, now)``: a step; ``now`` in microseconds of the database's clock."""


@value
class TakeRow:
    """Step that locks a row for ``lease`` microseconds; repeated, it renews."""

    ticket: str = field(repr=False)
    mode: Mode
    lease: int
    reason: str

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        current = ledger.valid()
        mine = current.grant(self.ticket)
        # A repeated step whose first reply was lost: the ticket holds already.
        if mine is not None and mine.expires > now:
            return current.kept(mine, now + self.lease)
        current = current.without(lambda grant: grant.expires <= now)
        state = current.state
        free = state.mark == UNLOCK
        if not (free or (self.mode is Mode.READ and state.mark == READ_LOCK)):
            return RowDecision(None, state)
        joins = self.mode is Mode.READ and bool(current.grants)
        # At least the database's clock: fences rise even if the column was lost.
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


@value
class ReleaseRow:
    """Step that ends the ticket's lock of the row; a repetition changes nothing."""

    ticket: str = field(repr=False)
    reason: str

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        current = ledger.valid()
        mine = current.grant(self.ticket)
        if mine is None:
            return RowDecision(None, current.state)
        left = current.without(lambda grant: grant.ticket == self.ticket)
        state = replace(left.state, reason=self.reason)
        change = replace(left, state=state, wrote=self.reason)
        return RowDecision(change, state, held=mine.expires > now)


@value
class RenewRow:
    """Step that renews a ticket's grant for ``lease`` microseconds, unless it ended."""

    ticket: str = field(repr=False)
    lease: int

    def __call__(self, ledger: RowGrants, now: int) -> RowDecision:
        current = ledger.valid()
        mine = current.grant(self.ticket)
        if mine is None or mine.expires <= now:
            return RowDecision(None, current.state)
        return current.kept(mine, now + self.lease)


def dump_row_grants(ledger: RowGrants, nonce: str) -> str:
    """Return the text that stores a row's grants, made unique by random ``nonce``."""
    grants = (
        f"{grant.ticket},{grant.mode},{grant.expires},{grant.fence}"
        for grant in ledger.grants
    )
    wrote = ledger.wrote[:MAX_KEPT_REASON].encode().hex()
    return ";".join((VERSION, nonce, str(ledger.last), wrote, *grants))


def _may_be_together(grants: Sequence[RowGrant]) -> bool:
    # If one of them had ended, a step would count the row as free, whichever client has
    # it (tests/fuzz/test_damage.py).
    modes = [grant.mode for grant in grants]
    return modes == [Mode.WRITE] or all(mode is Mode.READ for mode in modes)


def load_row_grants(state: RowState, text: str | None) -> RowGrants | None:
    """Return a row with the grants listed in ``text``, the value of its grants column.

    None if the text does not have this library's form.
    """
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
        if not _may_be_together(listed):
            return None
        reason = bytes.fromhex(wrote).decode()
        return RowGrants(state, tuple(listed), int(last), reason, nonce)
    except ValueError:
        return None
