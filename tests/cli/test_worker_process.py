"""Processes that work for a command: the errors if they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote.cli.report import CommandFailed
from aiorwlock_remote.cli.worker_process import READY, WorkerProcess, within
from tests.cli.fix_cli import environment, eventually, line

pytestmark = pytest.mark.anyio

ECHO = """
import sys
from aiorwlock_remote.cli.worker_process import end_with_command
end_with_command()
for line in sys.stdin:
    print(line, end="", flush=True)
    if line == "fail\\n":
        raise ValueError("as it was ordered")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A worker that says what it receives."""
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "echo"


async def test_a_worker_receives_and_answers(module: str, tmp_path: Path) -> None:
    helper = await WorkerProcess.start("echo", module, READY, tmp_path / "errors")
    await helper.wait_ready()
    await helper.send(b"twice\nthe same\n")
    assert [await helper.receive(), await helper.receive()] == ["twice", "the same"]
    await helper.dismiss()
    await helper.wait_finished()
    assert not helper.is_running
    assert not helper.killed
    await helper.aclose()


async def test_a_worker_that_is_not_ready_says_so(module: str, tmp_path: Path) -> None:
    helper = await WorkerProcess.start("echo", module, "a plan", tmp_path / "errors")
    with pytest.raises(CommandFailed, match=r"^echo said 'a plan'$"):
        await helper.wait_ready()
    await helper.aclose()
    assert helper.killed


async def test_why_it_ended_is_the_last_it_wrote(module: str, tmp_path: Path) -> None:
    helper = await WorkerProcess.start("echo", module, READY, tmp_path / "errors")
    await helper.send(b"fail\n")
    why = "^echo ended early: ValueError: as it was ordered$"
    with pytest.raises(CommandFailed, match=why):
        while True:
            await helper.receive()
    with pytest.raises(CommandFailed, match=why):
        await helper.wait_finished()
    with pytest.raises(CommandFailed, match=why):
        await helper.send(b"too late\n")
    await helper.aclose()


async def test_a_slow_worker_process_is_named() -> None:
    raises = pytest.raises(CommandFailed, match=r"^they did not come in 0 s$")
    with raises, within(0, "they", "come"):
        await anyio.sleep_forever()


def test_a_worker_outlives_the_thread_that_started_it(module: str) -> None:
    """As trio starts processes in threads that end when they are not needed."""
    started: list[subprocess.Popen[str]] = []
    up, end = threading.Event(), threading.Event()

    def start() -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        say(process, "up")
        up.set()
        end.wait()

    thread = threading.Thread(target=start)
    thread.start()
    up.wait()
    own = Path(f"/proc/self/task/{thread.native_id}")
    end.set()
    thread.join()
    eventually(lambda: not own.exists())
    (process,) = started
    with process:
        say(process, "still here")
        process.communicate()
    assert process.returncode == 0


def say(process: subprocess.Popen[str], text: str) -> None:
    """It says it again."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
    line(process, text)
