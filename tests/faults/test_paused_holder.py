"""A holder paused past its lease: LockLost before its next step, refused after."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import connect
from tests.faults.register import Register
from tests.faults.workers import ROOT


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_paused_writer(tmp_path: Path, loop: str) -> None:
    """SIGSTOP, another writes, SIGCONT: LockLost before the guarded step, then refused.

    The control without a fence is ``test_unfenced_control``.
    """
    output, _ = _pause(tmp_path, loop, fenced=True)
    assert output == ["lost expired, started=False", "refused"]


def test_unfenced_control(tmp_path: Path) -> None:
    """The resource that is not shown the newer fence accepts the stale write."""
    output, _ = _pause(tmp_path, "asyncio", fenced=False)
    assert output == ["lost expired, started=False", "accepted"]


def _pause(folder: Path, loop: str, *, fenced: bool) -> tuple[list[str], int]:
    url = f"sqlite:///{folder}/locks.db"
    arguments = [url, str(folder / "register"), loop]
    sleeper = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.sleeper", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with sleeper:
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == "holding\n"
            sleeper.send_signal(signal.SIGSTOP)
            fence = anyio.run(_write_meanwhile, url)
            if fenced:
                assert Register(folder / "register").access(fence) is not None
            sleeper.send_signal(signal.SIGCONT)
            out, _ = sleeper.communicate("go on\n", timeout=30)
        finally:
            sleeper.kill()
    return out.splitlines(), fence


async def _write_meanwhile(url: str) -> int:
    async with connect(url) as locks, locks.mutex("shared", 1).acquire(20) as held:
        return held.fence
