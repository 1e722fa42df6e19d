"""``detach`` and ``adopt``: a grant goes to another owner."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError, Locks, LockTimeout, NotOwner
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import Store


class PassingCases(Cases):
    """``detach`` and ``adopt``: a grant goes to another owner."""

    async def test_adopt_in_another_process(self, locks: Locks, others: Locks) -> None:
        """The adopter holds it, with the same fence; the giver does not any more."""
        held = await locks.rwlock("c", "ü,{}").writer.acquire()
        ticket = held.detach()
        assert ticket not in repr(held)
        assert await others.rwlock("c", "ü,{}").reader.try_acquire() is None
        with pytest.raises(NotOwner):
            held.check()
        with pytest.raises(NotOwner):
            await held.release()
        with pytest.raises(NotOwner):
            held.detach()
        theirs = await others.adopt(ticket)
        assert (theirs.fence, theirs.mode) == (held.fence, "write")
        assert theirs.resource == "c/ü,{}"
        theirs.check()
        assert await theirs.release()
        assert not await locks.rwlock("c", "ü,{}").locked()

    async def test_adopted_is_kept(
        self, store: Store, locks: Locks, others: Locks
    ) -> None:
        """An adopted grant is renewed by its new owner, also when the giver ended."""
        async with store.connect(lease=self.harness.kept) as giver:
            ticket = (await giver.mutex("order", 1).acquire()).detach()
        held = await locks.adopt(ticket)
        with pytest.raises(LockTimeout):
            await others.mutex("order", 1).acquire(timeout=1.5 * self.harness.kept)
        held.check()
        await held.release()

    async def test_adopt_after_release(self, locks: Locks, others: Locks) -> None:
        """What was adopted and released cannot be adopted again."""
        ticket = (await locks.mutex("order", 1).acquire()).detach()
        first = await others.adopt(ticket)
        assert await first.release()
        with pytest.raises(NotOwner):
            await others.adopt(ticket)
        with pytest.raises(NotOwner):
            await locks.adopt(ticket)

    async def test_adopt_twice(self, locks: Locks, others: Locks) -> None:
        """Adopting may be repeated, as after a lost reply: it is the same grant."""
        ticket = (await locks.mutex("order", 1).acquire()).detach()
        first, again = await others.adopt(ticket), await locks.adopt(ticket)
        assert first.holder == again.holder
        assert first.fence == again.fence
        assert len((await locks.mutex("order", 1).info()).holders) == 1
        again.detach()
        assert await first.release()

    async def test_adopt_after_expiry(self, locks: Locks, others: Locks) -> None:
        """A grant whose lease ran out cannot be adopted, nor taken from its heir."""
        ticket = (
            await locks.mutex("order", 1, lease=self.harness.short).acquire()
        ).detach()
        async with others.mutex("order", 1) as held:
            with pytest.raises(NotOwner):
                await locks.adopt(ticket)
            held.check()

    async def test_bad_tickets(self, locks: Locks) -> None:
        """Text that ``detach`` did not make is refused."""
        good = (await locks.mutex("order", 1).acquire()).detach()
        for bad in ("", "rwl1.", "nonsense", good[:-8], good[5:], "rwl9." + good[5:]):
            with pytest.raises(ConfigurationError):
                await locks.adopt(bad)
        await (await locks.adopt(good)).release()

    async def test_detached_survives_closing(self, store: Store, others: Locks) -> None:
        """Closing releases every grant but those that were given away."""
        async with store.connect() as locks:
            ticket = (await locks.mutex("order", 1).acquire()).detach()
        assert await others.mutex("order", 1).try_acquire() is None
        await (await others.adopt(ticket)).release()
        assert not await others.mutex("order", 1).locked()
