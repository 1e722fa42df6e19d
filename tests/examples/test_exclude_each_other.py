"""`examples/exclude_each_other.py` says whether two locks exclude each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.fix_site import EXAMPLES

pytestmark = pytest.mark.slow

LOCKS = """
from aiorwlock_remote.sync import connect

locks = connect("sqlite:///locks.db")

def take(lock):
    held = lock.try_acquire()
    return held and held.release

def mutex():
    return take(locks.mutex("order", 42))

def writer():
    return take(locks.rwlock("order", 42).writer)

def reader():
    return take(locks.rwlock("order", 42).reader)

def other():
    return take(locks.mutex("order", 43))

def no_lock():
    return lambda: None

def damaged():
    raise ValueError("damaged")

def damaged_release():
    return mutex() and damaged
"""


def check(folder: Path, *names: str) -> tuple[int, str]:
    """The exit status and what is printed."""
    (folder / "two.py").write_text(LOCKS, "utf-8")
    script = str(EXAMPLES / "exclude_each_other.py")
    ran = subprocess.run(
        [sys.executable, script, *(f"two.py:{name}" for name in names)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_they_exclude_each_other(tmp_path: Path) -> None:
    status, said = check(tmp_path, "mutex", "writer")
    assert status == 0
    assert said.splitlines() == [
        "two.py:mutex is held: two.py:writer was refused",
        "two.py:writer is held: two.py:mutex was refused",
        "They exclude each other",
    ]


def test_they_do_not(tmp_path: Path) -> None:
    status, said = check(tmp_path, "mutex", "other")
    assert status == 1
    assert said.count("GRANTED") == 2
    assert said.endswith("They do NOT exclude each other\n")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("no_lock", "mutex"), "two.py:no_lock does not even exclude itself"),
        (("mutex", "reader"), "two.py:reader does not even exclude itself"),
        (("mutex", "damaged"), "ValueError: damaged"),
        (("damaged_release", "mutex"), "ValueError: damaged"),
        (("mutex", "missing"), "KeyError: 'missing'"),
        (("mutex",), "Exit status"),
    ],
)
def test_nothing_can_be_said(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    status, printed = check(tmp_path, *names)
    assert status != 0
    assert said in printed
    assert "They" not in printed


def test_a_lock_that_is_taken(tmp_path: Path) -> None:
    """A refusal proves nothing if nobody could have had the lock."""
    from aiorwlock_remote.sync import connect  # noqa: PLC0415 - forks nothing else

    with connect(f"sqlite:///{tmp_path}/locks.db") as locks, locks.mutex("order", 42):
        status, printed = check(tmp_path, "other", "mutex")
    assert status == 2
    assert printed == "two.py:mutex is not free, so nothing can be said\n"
