"""Code of the user's that raises: no lock stays behind, and no lost body runs on."""

from __future__ import annotations

import _thread
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import anyio
import pytest

from aiorwlock_remote import (
    Attempt,
    BackendUnavailable,
    GrantEnd,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    connect,
    logs,
)
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no loop has a part in it"),
    pytest.mark.parametrize(
        "error", [ZeroDivisionError, SystemExit, KeyboardInterrupt]
    ),
    pytest.mark.usefixtures("renewed_often"),
]

NAME = ("order", 1)
Error = type[BaseException]


class Raising:
    """An observer and all it follows with; raises in ``where`` alone."""

    def __init__(self, where: str, error: Error) -> None:
        self._where, self._error = where, error

    def asked(self, attempt: Attempt) -> Raising:
        del attempt
        return self._in("asked")

    def obtained(self, resource: str, fence: int) -> None:
        del resource, fence
        self._in("obtained")

    def failed(self, error: BaseException | None) -> None:
        del error
        self._in("failed")

    def ended(self, how: GrantEnd) -> None:
        del how
        self._in("ended")

    def _in(self, where: str) -> Raising:
        if where == self._where:
            raise self._error
        return self


class Handler(logging.Handler):
    """Raises for each record."""

    def __init__(self, error: Error) -> None:
        super().__init__()
        self._error = error
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        raise self._error


@pytest.fixture(autouse=True)
def interrupts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Ctrl-C that was given again."""
    given = list[None]()
    monkeypatch.setattr(_thread, "interrupt_main", lambda: given.append(None))
    monkeypatch.setattr(logs, "INTERRUPT_DELAY", 0.0)
    return given


@pytest.fixture
def handler(error: Error) -> Iterator[Handler]:
    """On all our loggers."""
    ours, handler = logging.getLogger("aiorwlock_remote"), Handler(error)
    ours.addHandler(handler)
    yield handler
    ours.removeHandler(handler)


async def _block(locks: Locks) -> None:
    async with locks.mutex(*NAME):
        pass


async def _by_hand(locks: Locks) -> None:
    held = await locks.mutex(*NAME).try_acquire()
    assert held is not None
    await held.release()


async def _not_free(locks: Locks) -> None:
    async with locks.mutex(*NAME), anyio.create_task_group() as tasks:
        tasks.start_soon(_refused, locks)


async def _refused(locks: Locks) -> None:
    assert await locks.mutex(*NAME).try_acquire() is None
    with pytest.raises(LockTimeout):
        await locks.mutex(*NAME).acquire(timeout=0.01)


async def _moves(locks: Locks) -> None:
    async with locks.rwlock(*NAME).writer as held:
        reader = await held.downgrade()
        assert await reader.try_upgrade() is not None


async def _body_fails(locks: Locks) -> None:
    with pytest.raises(KeyError):
        async with locks.mutex(*NAME):
            raise KeyError


async def _passed_on(locks: Locks) -> None:
    held = await locks.mutex(*NAME).acquire()
    await (await locks.adopt(held.detach())).release()


async def _closed(locks: Locks) -> None:
    kept = [await locks.mutex("order", number).acquire() for number in (1, 2)]
    await locks.aclose()
    del kept


async def _dropped(locks: Locks) -> None:
    async def drop() -> None:
        # Without a lease: the keeper, which looks often here, must not notice first.
        await locks.mutex(*NAME, lease=None).acquire()
        gc.collect()

    with pytest.warns(ResourceWarning):
        await drop()
    await anyio.wait_all_tasks_blocked()
    await locks.aclose()


async def _lost(locks: Locks) -> None:
    """Its body is cancelled."""
    with anyio.fail_after(10), pytest.raises(LockLost):
        async with locks.mutex(*NAME):
            await locks.force_release(await locks.mutex(*NAME).info(), reason="test")
            await anyio.sleep_forever()


USES: dict[str, Callable[[Locks], Awaitable[None]]] = {
    "block": _block,
    "by_hand": _by_hand,
    "not_free": _not_free,
    "moves": _moves,
    "body_fails": _body_fails,
    "passed_on": _passed_on,
    "closed": _closed,
    "dropped": _dropped,
    "lost": _lost,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", ["asked", "obtained", "failed", "ended"])
async def test_an_observer(
    error: Error,
    where: str,
    use: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A record that is kept refers to the grant, which would never be dropped.
    caplog.set_level(logging.CRITICAL, "aiorwlock_remote.observers")
    url = f"memory://{tmp_path.name}"
    observers = [Raising(where, error), Raising("", error)]
    async with (
        connect(url) as others,
        connect(url, observers=observers) as locks,
    ):
        await USES[use](locks)
        for number in (1, 2):
            assert not await others.mutex("order", number).locked()


async def test_on_lost(error: Error, handler: Handler, tmp_path: Path) -> None:
    """The callback raises, and so does the log that reports it."""
    lost = list[Held]()

    def on_lost(held: Held) -> NoReturn:
        lost.append(held)
        raise error

    async def called() -> bool:
        return bool(lost)

    async with connect(f"memory://{tmp_path.name}") as locks:
        async with locks.mutex(*NAME, on_lost=on_lost):
            await locks.force_release(await locks.mutex(*NAME).info(), reason="test")
            await wait_until(called, 10)
        await _block(locks)
    assert any("on_lost_failed" in text for text in handler.seen)


async def test_the_log_of_a_loss(handler: Handler, tmp_path: Path) -> None:
    """Forced, lost, and what an observer makes of it: three lines that raise."""
    url = f"memory://{tmp_path.name}"
    observer = Raising("ended", ZeroDivisionError)
    async with connect(url, observers=[observer]) as locks:
        await _lost(locks)
    events = {text.split()[0] for text in handler.seen}
    assert {"forced", "lost", "observer_failed"} <= events


@pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")
async def test_the_log_of_the_keepers_threads(handler: Handler) -> None:
    """They go on: another lock is renewed, and a loss is reported."""
    store = FaultyMemory()

    async def lost() -> bool:
        events = {text.split()[0] for text in handler.seen}
        return {"owner_gone", "renewal_failed"} <= events

    async with store.connect(lease=5) as locks:
        store.link.renewals_fail = True
        await locks.mutex("gone", 1).acquire()  # and nobody has it: "owner_gone"
        gc.collect()
        async with locks.mutex(*NAME) as kept:
            await wait_until(lost, 10)
            store.link.renewals_fail = False
            before = kept.expires_in or 0.0

            async def renewed() -> bool:
                return (kept.expires_in or 0.0) > before

            await wait_until(renewed, 10)
        await _lost(locks)


async def test_the_log_of_what_failed(handler: Handler) -> None:
    """Nobody waits for the answer, and the log that reports it raises."""
    store = FaultyMemory()
    async with store.connect(lease=60) as locks, store.connect_rival() as near:
        held = await locks.mutex(*NAME).acquire()
        store.link.fate = lambda command: (
            Fate.REFUSE if isinstance(command, Release) else Fate.PASS
        )
        with pytest.raises(KeyError):
            async with locks.mutex("body", 1):
                raise KeyError  # it is released without waiting: "request_failed"
        with suppress(BackendUnavailable):
            await held.release()
        store.link.fate = lambda _: Fate.PASS
        both = near.multi(near.mutex(*NAME), near.mutex("body", 1), timeout=20)
        async with both:
            pass
    assert any(text.startswith("request_failed") for text in handler.seen)


async def test_ctrl_c_is_given_again(
    error: Error, interrupts: list[None], tmp_path: Path
) -> None:
    """Nobody knows where it lands; it is to interrupt the program, only not there."""

    async def given() -> bool:
        return bool(interrupts)

    async with connect(
        f"memory://{tmp_path.name}", observers=[Raising("obtained", error)]
    ) as locks:
        await _block(locks)
    if error is KeyboardInterrupt:
        await wait_until(given, 10)
    else:
        assert not interrupts
