"""Waking by the system, where it does, and by looking, where it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Held, Mutex, connect
from aiorwlock_remote.backends.files import directory
from aiorwlock_remote.embedded import inotify
from aiorwlock_remote.embedded.connection import PlainWakeEvent, WakeEvent
from tests.backends.files.one_resource import ResourceClient

LONG = 30.0


def waits(alarm: WakeEvent, seconds: float | None, act: Callable[[], object]) -> float:
    """How long somebody slept who was asleep before that was done."""
    began = threading.Event()
    took: list[float] = []

    def sleep() -> None:
        began.set()
        before = time.monotonic()
        alarm.wait(seconds)
        took.append(time.monotonic() - before)

    thread = threading.Thread(target=sleep)
    thread.start()
    began.wait()
    act()
    thread.join(2 * LONG)
    return took[0]


def test_a_step_is_heard(tmp_path: Path) -> None:
    one, other = (
        ResourceClient(tmp_path, client_id="one"),
        ResourceClient(tmp_path, client_id="other"),
    )
    alarm = one.connection.alarm()
    assert alarm.hears
    assert waits(alarm, LONG, lambda: other.take("theirs")) < LONG / 2
    alarm.close()


def test_a_step_of_our_own_is_not_heard(tmp_path: Path) -> None:
    """It rings by itself, and two threads would only be in each other's way."""
    one = ResourceClient(tmp_path, client_id="one")
    alarm = one.connection.alarm()
    assert waits(alarm, 0.3, lambda: one.take("ours")) >= 0.29
    alarm.close()


@pytest.mark.parametrize("deaf", [True, False])
def test_woken(tmp_path: Path, deaf: bool) -> None:
    alarm = PlainWakeEvent() if deaf else ResourceClient(tmp_path).connection.alarm()
    for seconds in (LONG, None):
        assert waits(alarm, seconds, alarm.set) < LONG / 2
    alarm.set()  # before anybody waits
    alarm.wait(None)
    alarm.close()


def test_nobody_waits_for_anything(tmp_path: Path) -> None:
    """Then what others do is heard by nobody."""
    client = ResourceClient(tmp_path)
    alarm = client.connection.alarm()

    def act() -> None:
        client.take("ours")
        time.sleep(0.2)
        alarm.set()

    assert waits(alarm, None, act) >= 0.2
    alarm.close()


def test_closed_completely(tmp_path: Path) -> None:
    client = ResourceClient(tmp_path)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(5):
        client.connection.alarm().close()
    assert len(list(descriptors.iterdir())) == before


def test_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not inotify.alarm(str(tmp_path / "missing"), b"").hears

    def none_left(path: str) -> int:
        raise OSError(24, path)

    monkeypatch.setattr(inotify, "_listener", none_left)
    assert not ResourceClient(tmp_path).connection.alarm().hears


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_by_looking_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "alarm", lambda *_: PlainWakeEvent())
    await hand_over(tmp_path.as_uri())


async def hand_over(url: str) -> None:
    """From one client to another that waits."""
    async with connect(url) as one, connect(url) as other:
        held = await one.mutex("order", 42).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(release_when_waited_for, one.mutex("order", 42), held)
            with anyio.fail_after(LONG):
                async with other.mutex("order", 42):
                    pass


async def release_when_waited_for(lock: Mutex, held: Held) -> None:
    while not (await lock.info()).queue:  # noqa: ASYNC110 - it tells nobody
        await anyio.sleep(0.01)
    await held.release()
