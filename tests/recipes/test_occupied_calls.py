"""The decorator, and what an object may be named by."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from aiorwlock_remote import Closed, ConfigurationError, LockBusy, LockLost, NotOwner
from aiorwlock_remote.recipes import Occupancy, folder_occupancy
from aiorwlock_remote.recipes.occupancy import Occupied
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.fixed_clock import StandingClock

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


@pytest.fixture
def books(tmp_path: Path) -> Occupancy:
    return folder_occupancy.occupancy(tmp_path)


def book(_request: str, number: int) -> tuple[str, int]:
    return "book", number


async def test_a_call_is_one_use(books: Occupancy) -> None:
    @books.occupied(book)
    async def view(request: str, number: int) -> str:
        """Shown."""
        assert len(await books.holders(("book", number))) == 1
        if request == "again":
            return await view("inner", number)
        return f"{request} {number}"

    assert view.__doc__ == "Shown."
    assert await view("get", 1) == "get 1"
    assert await view("get", number=2) == "get 2"
    with pytest.raises(LockBusy):
        await view("again", 1)
    assert await books.holders(("book", 1)) == ()


async def test_busy_makes_the_answer_unless_the_body_was_refused(
    books: Occupancy,
) -> None:
    def busy(error: LockBusy) -> str:
        return f"in use by {error.holders[0]}"

    @books.occupied(book, busy=busy)
    async def view(request: str, number: int) -> str:
        if request == "other":
            raise LockBusy(resource=f"another thing than {number}")
        return request

    async with books.occupy(("book", 1), who="alice"):
        assert await view("get", 1) == "in use by alice"
    with pytest.raises(LockBusy, match="another thing"):
        await view("other", 1)


async def test_only_coroutine_functions(books: Occupancy) -> None:
    def plain(_request: str, number: int) -> str:
        return str(number)

    with pytest.raises(ConfigurationError, match="no coroutine function"):
        books.occupied(book)(plain)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError):
        books.occupied(book, timeout=-1)
    bad: Any
    for bad in ("text", ("book", 42), None):
        with pytest.raises(ConfigurationError, match="functions"):
            books.occupied(bad)
    with pytest.raises(ConfigurationError, match="functions"):
        books.occupied(book, busy="in use")  # type: ignore[arg-type]


async def test_one_that_is_dropped_is_warned_of(books: Occupancy) -> None:
    occupied = await books.occupy(("book", 1))
    some = [occupied]
    del occupied
    with pytest.warns(ResourceWarning, match=r"'book:1' in use.* was dropped"):
        some.clear()
    assert await books.try_occupy(("book", 1)) is None
    await books.aclose()


async def test_one_that_was_given_back_is_not_entered_again(
    books: Occupancy,
) -> None:
    occupied = await books.occupy(("book", 1))
    async with occupied:
        pass
    with pytest.raises(NotOwner):
        async with occupied:
            pytest.fail("it protects nothing")


async def test_one_that_is_entered_is_not_entered_again(books: Occupancy) -> None:
    """The inner block's end would leave the rest of the outer one unprotected."""
    occupying = books.occupy(("book", 1))
    async with occupying as occupied:
        with pytest.raises(ConfigurationError, match=r"occupy\(…\) is entered already"):
            async with occupying:
                pytest.fail("it is in use")
        async with occupied:
            with pytest.raises(ConfigurationError, match="entered already"):
                async with occupied:
                    pytest.fail("it is entered")
            assert await books.try_occupy(("book", 1)) is None


@pytest.mark.parametrize("raising", [True, False])
async def test_a_forked_child_gives_nothing_back(
    books: Occupancy, monkeypatch: pytest.MonkeyPatch, *, raising: bool
) -> None:
    pid = os.getpid()
    error = ZeroDivisionError if raising else Closed
    with pytest.raises(error, match="zero" if raising else "fork"):
        async with books.occupy(("book", 1)) as occupied:
            monkeypatch.setattr(os, "getpid", lambda: pid + 1)
            for refused in (occupied.extend, occupied.release):
                with pytest.raises(Closed, match="fork"):
                    await refused()
            if raising:
                raise ZeroDivisionError("division by zero")
    occupied.__del__()  # nothing to be warned of
    monkeypatch.undo()
    assert await books.try_occupy(("book", 1)) is None
    assert await occupied.release()


@pytest.mark.slow
async def test_one_that_is_too_old_is_not_entered(tmp_path: Path) -> None:
    short = folder_occupancy.occupancy(tmp_path, using_age=1)
    occupied = await short.occupy(("book", 1))
    await anyio.sleep(1.1)
    with pytest.raises(LockLost, match="expired"):
        async with occupied:
            pytest.fail("it protects nothing")
    assert await occupied.release()


async def test_extended_it_is_as_young_as_when_that_was_asked_for(
    books: Occupancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the store took to do it."""
    clock = StandingClock()
    occupied = Occupied(books.store, current_event_loop(clock), "book:1", "me", 1.0)
    young = occupied.expires_in

    async def slowly(*_: str) -> bool:
        clock.seconds += 20.0
        return True

    monkeypatch.setattr(books.store, "extend", slowly)
    clock.seconds += 50.0
    await occupied.extend()
    assert young is not None
    assert occupied.expires_in == pytest.approx(young - 20.0)
    monkeypatch.setattr(books.store, "remove", slowly)
    assert await occupied.release()


async def test_it_is_as_old_as_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record may have been written at any time since then."""
    clock, store = StandingClock(), folder_occupancy.occupancy(tmp_path).store
    books = Occupancy(store, event_loop=lambda: current_event_loop(clock))
    write = store.write

    async def slowly(thing: str, who: str) -> None:
        clock.seconds += 20.0
        await write(thing, who)

    monkeypatch.setattr(store, "write", slowly)
    occupied = await books.occupy(("book", 1))
    old = occupied.expires_in
    assert old is not None
    await occupied.extend()
    assert occupied.expires_in == pytest.approx(old + clock.now() - 1.0)
    assert await occupied.release()


async def test_names(books: Occupancy) -> None:
    number = UUID(int=7)
    async with books.occupy(("book", number)):
        assert await books.try_occupy(("book", str(number))) is None
    async with await books.occupy(("book", 1)) as occupied:
        assert repr(occupied) == "<Occupied 'book:1' in use>"
    assert repr(occupied) == "<Occupied 'book:1' given back>"
    for timeout in (-1, float("nan"), "1"):
        with pytest.raises(ConfigurationError):
            _ = books.occupy(("book", 1), timeout)  # type: ignore[arg-type]


async def test_what_names_and_answers_is_no_coroutine_function(
    books: Occupancy,
) -> None:
    """Nobody would await what it gives."""

    async def later(*_: object) -> str:
        return "later"

    plain: list[dict[str, Any]] = [{"thing": later}, {"thing": book, "busy": later}]
    for functions in plain:
        with pytest.raises(ConfigurationError, match="plain functions"):
            books.occupied(**functions)


def test_what_another_loop_occupied(books: Occupancy) -> None:
    """Only its own loop can give it back: it is not taken for given back."""
    # Not returned: anyio below 4.16 keeps what its ``run`` returned.
    kept: list[Occupied] = []

    async def occupy() -> None:
        kept.append(await books.occupy(("book", 1)))

    async def use(occupied: Occupied) -> None:
        occupied.check()
        for ask in (occupied.release, occupied.extend, occupied.release):
            with pytest.raises(Closed, match="another event loop"):
                await ask()
        assert len(await books.holders(("book", 1))) == 1

    def drop() -> None:
        kept.clear()
        gc.collect()  # an error that was caught may know of it

    anyio.run(occupy)
    anyio.run(use, kept[0])
    with pytest.warns(ResourceWarning, match="was dropped"):
        drop()
