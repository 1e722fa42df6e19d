"""Hosts that share a mount and agree on no clock but the file server's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Unsupported, connect
from aiorwlock_remote.backends.files.clocks import ServerClock
from aiorwlock_remote.core.commands import Acquire, Claim, Granted
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from tests.backends.files.one_resource import LEASE, ResourceClient
from tests.renewals import renewed
from tests.servers.clock import off_by

ROOT = Path(__file__).parents[3]
HOUR = 3600
ONE = """
import sys, anyio
from aiorwlock_remote import connect

async def main(url):
    async with connect(url) as locks:
        for _ in sys.stdin:
            held = await locks.mutex("order", 42).try_acquire()
            if held:
                await held.release()
            print(held.fence if held else 0, flush=True)

anyio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_no_hosts_own_clock_counts(tmp_path: Path, ahead: int) -> None:
    """Neither the wall clock nor since when a host is up."""
    one, other = (
        ResourceClient(tmp_path, shared=True),
        ResourceClient(tmp_path, shared=True),
    )
    other.clock.by = ahead
    fence = one.take("one")
    assert not other.take("other")
    one.give("one")
    assert other.take("other") > fence


def test_by_its_own_clock_it_would_not_wait(tmp_path: Path) -> None:
    """The control: on one host all have one clock, and this one has not."""
    one, other = ResourceClient(tmp_path), ResourceClient(tmp_path)
    other.clock.by = LEASE / 1e6 + 1
    assert one.take("one")
    assert other.take("other")


def test_a_lease_ends_by_the_servers_clock(tmp_path: Path) -> None:
    one, other = (
        ResourceClient(tmp_path, shared=True),
        ResourceClient(tmp_path, shared=True),
    )
    other.clock.by = -HOUR
    short = Acquire((Claim("one", 500_000),), Mode.WRITE)
    before = time.monotonic()
    assert isinstance(one.ask(short), Granted)
    while not other.take("other"):
        time.sleep(0.01)
    # Its stamps are as fine as the kernel's ticks, of a hundredth of a second at most.
    assert time.monotonic() - before >= 0.48


def test_stamps_by_the_second_are_too_coarse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (1_800_000_000_000_000,) * 2
    monkeypatch.setattr(ServerClock, "times", lambda _: whole)
    with pytest.raises(Unsupported, match="by the second"):
        ResourceClient(tmp_path, shared=True)


def test_no_boot_of_a_host_ends_a_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ResourceClient(tmp_path, shared=True).take("one")
    monkeypatch.setattr(boot_id, "this_boot", lambda: BootId("another host's"))
    assert not ResourceClient(tmp_path, shared=True).take("other")


def started(days: int, url: str, folder: Path) -> subprocess.Popen[str]:
    """A process whose clock is off."""
    return subprocess.Popen(
        [*off_by(days * 86_400, folder), sys.executable, "-c", ONE, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("renewed_often")
async def test_processes_whose_clocks_are_a_day_apart(tmp_path: Path) -> None:
    """Each is let in when nobody holds, with a higher fence each time."""
    (tmp_path / "locks").mkdir()
    url = f"{(tmp_path / 'locks').as_uri()}?shared=yes"
    processes = [started(days, url, tmp_path) for days in (-1, 1)]

    def fences_seen() -> list[int]:
        fences = []
        for process in processes:
            assert process.stdin
            assert process.stdout
            process.stdin.write("try\n")
            process.stdin.flush()
            fences.append(int(process.stdout.readline()))
        return fences

    try:
        async with connect(url) as locks:
            async with locks.mutex("order", 42) as held:
                assert await anyio.to_thread.run_sync(fences_seen) == [0, 0]
                await renewed(held)
                assert await anyio.to_thread.run_sync(fences_seen) == [0, 0]
            first, second = await anyio.to_thread.run_sync(fences_seen)
            assert held.fence < first < second
            async with locks.mutex("order", 42) as held:
                assert second < held.fence
    finally:
        for process in processes:
            process.communicate()
