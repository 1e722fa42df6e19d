"""The synchronous API in greenlets, after ``gevent.monkey.patch_all()``."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_program_of_greenlets(url: str) -> None:
    ended = run("-X", "dev", "-m", "tests.sync.gevent_program", url)
    assert ended.returncode == 0, ended.stdout
    for sign in ("Traceback", "Error", "ignored"):
        assert sign not in ended.stdout, ended.stdout


def test_gevent_is_not_imported_for_others() -> None:
    """A program without gevent does not pay for it."""
    code = (
        "import sys\n"
        "from aiorwlock_remote.sync import connect\n"
        "with connect('memory://') as locks, locks.mutex('order', 1): pass\n"
        "sys.exit('gevent' in sys.modules)"
    )
    assert run("-c", code).returncode == 0


def test_cassandra_is_refused() -> None:
    """The driver's threads would be greenlets, which nobody runs."""
    code = (
        "from gevent import monkey; monkey.patch_all()\n"
        "from aiorwlock_remote.sync import connect\n"
        "connect('cassandra://127.0.0.1/locks')"
    )
    ended = run("-c", code)
    assert ended.returncode == 1
    assert "Unsupported: after gevent.monkey.patch_all() the threads" in ended.stdout
