"""Occupying objects by pending → using, alike on every store."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from aiorwlock_remote import Closed, LockBusy, LockLost, LockTimeout, NotOwner
from aiorwlock_remote.recipes import Occupancy, Occupied, folder_occupancy
from aiorwlock_remote.runtime.event_loop import require_asyncio
from tests.recipes.occupied_places import BOOK, NAME, FolderPlace, Place
from tests.recipes.test_occupancy_faults import NOTHING as NOTHING_
from tests.recipes.test_occupancy_faults import watched

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


NOTHING: tuple[list[str], list[str]] = ([], [])


async def test_one_uses_it_and_the_others_learn_by_whom(place: Place) -> None:
    async with place.open() as ours, place.open() as theirs:
        async with ours.occupy(BOOK, who="alice") as occupied:
            occupied.check()
            assert occupied.name == NAME
            pendings, usings = place.records()
            assert (pendings, len(usings)) == ([], 1)
            for again in (ours, theirs):
                with pytest.raises(LockBusy) as busy:
                    await again.occupy(BOOK)
                assert busy.value.holders == ("alice",)
                assert busy.value.resource == NAME
            assert await theirs.try_occupy(BOOK) is None
            assert await theirs.holders(BOOK) == ("alice",)
            assert place.records() == (pendings, usings), "nothing is left of the busy"
            async with theirs.occupy(("book", 43)):
                pass
        assert place.records() == NOTHING
        assert await theirs.holders(BOOK) == ()
        async with theirs.occupy(BOOK):
            assert len(place.records()[1]) == 1
        assert place.records() == NOTHING


async def test_it_is_given_back_once(place: Place) -> None:
    async with place.open() as ours:
        occupied = await ours.try_occupy(BOOK)
        assert occupied is not None
        assert await occupied.release()
        assert not await occupied.release()
        with pytest.raises(NotOwner):
            await occupied.extend()
        with pytest.raises(NotOwner):
            occupied.check()
        assert place.records() == NOTHING


async def test_closing_gives_all_back_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is slow makes nobody wait for one after the other."""
    release, together = Occupied.release, anyio.Event()
    under_way: list[Occupied] = []

    async def meet(occupied: Occupied) -> bool:
        under_way.append(occupied)
        if len(under_way) == 3:
            together.set()
        await together.wait()
        return await release(occupied)

    monkeypatch.setattr(Occupied, "release", meet)
    with anyio.fail_after(30):
        async with place.open() as ours:
            occupied = [await ours.occupy(("book", number)) for number in (1, 2, 3)]
            await ours.aclose()
    assert set(under_way) == set(occupied)


async def test_the_bodys_own_error_goes_first(place: Place) -> None:
    async with place.open() as ours:
        with pytest.raises(ZeroDivisionError):
            async with ours.occupy(BOOK):
                raise ZeroDivisionError
        assert place.records() == NOTHING
        with pytest.raises(ZeroDivisionError):
            async with ours.occupy(BOOK):
                place.erase()
                raise ZeroDivisionError


async def test_a_lost_use_is_reported(place: Place) -> None:
    async with place.open() as ours:
        with pytest.raises(LockLost) as lost:
            async with ours.occupy(BOOK):
                place.erase()
        assert lost.value.reason == "forced"
        occupied = await ours.occupy(BOOK)
        place.erase()
        with pytest.raises(LockLost):
            await occupied.extend()
        with pytest.raises(LockLost):
            await occupied.release()


async def test_another_programs_records_keep_us_out(place: Place) -> None:
    async with place.open() as ours:
        place.plant("using", "joe")
        with pytest.raises(LockBusy) as busy:
            await ours.occupy(BOOK)
        assert busy.value.holders == ("joe",)
        place.erase()
        place.plant("pending", "jim")
        with pytest.raises(LockTimeout) as late:
            await ours.occupy(BOOK, timeout=0.3)
        assert late.value.holders == ("jim",)
        assert place.records() == (["jim"], [])
        assert await ours.try_occupy(BOOK, 0.0) is None
        async with anyio.create_task_group() as group:
            group.start_soon(_occupy, ours)
            await anyio.sleep(0.1)
            # He is through. In a thread: SQLite's writers wait for our own readers.
            await anyio.to_thread.run_sync(place.erase)


async def _occupy(ours: Occupancy) -> None:
    async with ours.occupy(BOOK, timeout=30):
        pass


@pytest.mark.slow
async def test_who_crashed_blocks_nobody_for_ever(place: Place) -> None:
    """A pending record that nobody will ever take out."""
    async with place.open(pending_age=1) as ours:
        place.plant("pending", "jim")
        with pytest.raises(LockTimeout):
            await ours.occupy(BOOK, timeout=0.0)
        async with ours.occupy(BOOK, timeout=30):
            assert place.records()[0] == []
        assert place.records() == NOTHING


@pytest.mark.slow
async def test_a_program_that_is_too_slow_learns_of_it_and_harms_nobody(
    place: Place,
) -> None:
    """The same as one that crashed while it was using, until it comes back."""
    async with place.open(using_age=1) as ours, place.open(using_age=1) as theirs:
        slow = await ours.occupy(BOOK)
        slow.check()
        assert await theirs.try_occupy(BOOK) is None
        other = await _in_the_end(theirs, "bob")
        with pytest.raises(LockLost):
            slow.check()
        with pytest.raises(LockLost):
            await slow.extend()
        with pytest.raises(LockLost) as lost:
            await slow.release()
        assert lost.value.reason == "expired"
        assert await ours.holders(BOOK) == ("bob",), "it was not his to take out"
        assert await other.release()


async def _in_the_end(ours: Occupancy, who: str) -> Occupied:
    with anyio.fail_after(30):
        while True:
            occupied = await ours.try_occupy(BOOK, who=who)
            if occupied is not None:
                return occupied
            await anyio.sleep(0.05)


async def test_extended_it_is_young_again(place: Place) -> None:
    async with place.open() as ours, ours.occupy(BOOK) as occupied:
        await anyio.sleep(0.3)
        before = occupied.expires_in
        await occupied.extend()
        assert before is not None
        assert occupied.expires_in is not None
        assert occupied.expires_in > before
        other = ours.store.sign("other")
        await ours.store.write(NAME, other)
        (record,) = await ours.store.usings(NAME, other)
        assert record.age < 0.3  # counted anew (a string of Redis has a TTL for that)
        await ours.store.remove(NAME, other)


async def test_no_age_no_end(place: Place) -> None:
    async with place.open(using_age=None) as ours:
        async with ours.occupy(BOOK) as occupied:
            assert occupied.expires_in is None
            occupied.check()
            await occupied.extend()
            assert await ours.try_occupy(BOOK) is None
        assert place.records() == NOTHING


async def test_a_pending_that_was_dropped_never_uses(place: Place) -> None:
    """What a contender that was too slow for its age meets: the store's own promise."""
    async with place.open(pending_age=1) as ours, place.open() as theirs:
        a, b = ours.store, theirs.store
        slow, other = a.sign("slow"), b.sign("other")
        await a.write(NAME, slow)
        await b.write(NAME, other)
        (found,) = await b.pendings(NAME, other)
        assert found.who == slow
        await b.drop(NAME, found, using=False)
        assert await b.pendings(NAME, other) == []
        assert not await a.promote(NAME, slow)
        assert await b.promote(NAME, other)
        assert not await a.extend(NAME, slow)
        assert not await a.remove(NAME, slow)
        assert [record.who for record in await a.usings(NAME, slow)] == [other]
        assert await b.remove(NAME, other)
        assert place.records() == NOTHING


async def test_what_changed_since_it_was_seen_is_not_dropped(place: Place) -> None:
    async with place.open() as ours:
        store = ours.store
        mine, other = store.sign("me"), store.sign("other")
        await store.write(NAME, mine)
        await store.write(NAME, other)
        (found,) = await store.pendings(NAME, mine)
        await anyio.sleep(0.02)
        await store.remove(NAME, other)
        await store.write(NAME, other)
        await store.drop(NAME, found, using=False)
        assert len(place.records()[0]) == 2
        place.erase()


TASKS, TURNS = 6, 4


async def test_many_want_it_at_once(place: Place) -> None:
    inside, most, turns = 0, 0, 0

    async def want(some: Occupancy) -> None:
        nonlocal inside, most, turns
        mine = 0
        while mine < TURNS:
            occupied = await some.try_occupy(BOOK, 30)
            if occupied is None:
                await anyio.sleep(0.01)
                continue
            async with occupied:
                inside += 1
                most = max(most, inside)
                await anyio.lowlevel.checkpoint()
                inside -= 1
            mine += 1
            turns += 1

    async with place.open() as ours, place.open() as theirs:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(TASKS):
                    group.start_soon(want, (ours, theirs)[number % 2])
    assert (most, turns) == (1, TASKS * TURNS)
    assert place.records() == NOTHING


# ------- Occupancy that are closed, and a loop that their libraries do not know


async def test_closing_calls_off_and_gives_back(tmp_path: Path) -> None:
    place = FolderPlace(str(tmp_path))
    home, store = watched(folder_occupancy.occupancy(tmp_path))
    held = await home.occupy(("book", 1))
    stands = anyio.Event()

    async def stand(step: str) -> None:
        if step == "promote":
            stands.set()
            await anyio.sleep(0.05)

    store.before = stand
    errors: list[str] = []

    async def use(timeout: float | None) -> None:
        try:
            await home.occupy(BOOK, timeout)
        except (Closed, LockTimeout) as exc:
            errors.append(type(exc).__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(use, None)
        await stands.wait()
        await home.aclose()
    assert errors == ["Closed"]
    assert place.records() == NOTHING_
    assert not await held.release()
    with pytest.raises(Closed):
        await home.occupy(BOOK)
    assert place.records() == NOTHING_


@pytest.mark.only_on("trio", "it is about trio")
async def test_a_library_of_asyncio_says_so() -> None:
    with pytest.raises(Exception, match="asyncio only"):
        require_asyncio()
