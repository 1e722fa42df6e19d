"""`rwlock run --once-per`: a cron job that runs on one of many machines."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import connect
from tests.cli.fix_cli import RWLOCK, TIMEOUT, environment, line
from tests.servers.clock import off_by
from tests.servers.redis import RedisServer
from tests.servers.store_url import STORES, store_url

DAY = "1d"


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


def rwlock(
    url: str, *words: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """``before``: what goes before the command, as ``env``."""
    return subprocess.run(
        [*before, *RWLOCK, "run", *words],
        env=environment(RWLOCK_URL=url),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def ran(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether it ran ``echo``; all else would be a failure."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout == "ran\n"


@contextmanager
def running(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose command has begun, and goes on until its input ends."""
    with subprocess.Popen(
        [*RWLOCK, "run", *words, "sh", "-c", "echo up; read _"],
        env=environment(RWLOCK_URL=url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line(process, "up")
            yield process
        finally:
            process.kill()


def test_machines_at_the_same_time(url: str) -> None:
    words = ("--once-per", DAY, "job/report", "--", "echo", "ran")
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: rwlock(url, *words), range(4)))
    assert sorted(ran(one) for one in done) == [False, False, False, True]


@pytest.mark.parametrize("url", ["redis", "postgresql"], indirect=True)
def test_machines_whose_clocks_differ_by_days(url: str, tmp_path: Path) -> None:
    """The store's clock counts, and no machine's."""
    words = ("--once-per", DAY, "job/report", "--", "echo", "ran")
    days = [3, 0, -3, 2, 400]
    clocks = [off_by(day * 86_400, tmp_path) for day in days]
    assert [ran(rwlock(url, *words, before=clock)) for clock in clocks] == [
        True,
        *(False for _ in days[1:]),
    ]


@pytest.mark.parametrize("url", ["redis", "postgresql"], indirect=True)
def test_a_period_ends_by_the_clock_of_the_store(url: str, tmp_path: Path) -> None:
    """Also for a machine whose clock is days behind."""
    words = ("--once-per", "2", "job/report", "--", "echo", "ran")
    late = off_by(-3 * 86_400, tmp_path)
    assert ran(rwlock(url, *words))
    wait_until_free(url, "job-period")
    assert ran(rwlock(url, *words, before=late))


def wait_until_free(url: str, kind: str) -> None:
    """Until the store grants ``kind/report`` to another program."""

    async def wait() -> None:
        async with connect(url) as locks:
            held = await locks.mutex(kind, "report").acquire(timeout=TIMEOUT)
            await held.release()

    anyio.run(wait)


@pytest.mark.parametrize("code", [3, 128 + 15])
def test_a_command_that_failed(url: str, code: int) -> None:
    command = "exit 3" if code == 3 else "kill -TERM $$"
    fails = ("job/report", "--", "sh", "-c", command)
    succeeds = ("job/report", "--", "echo", "ran")
    assert rwlock(url, "--once-per", DAY, *fails).returncode == code
    assert not ran(rwlock(url, "--once-per", DAY, *succeeds))


def test_a_command_that_failed_is_run_again_with_retry(url: str) -> None:
    once = ("--once-per", DAY, "--retry", "--at-least", "1")
    fails = (*once, "job/report", "--", "sh", "-c", "exit 3")
    succeeds = (*once, "job/report", "--", "echo", "ran")
    assert rwlock(url, *fails).returncode == 3
    wait_until_free(url, "job-period")
    assert ran(rwlock(url, *succeeds))
    assert not ran(rwlock(url, *succeeds))


def test_at_least(url: str) -> None:
    """The lock outlives a short command, as long as that was asked for."""
    words = ("--at-least", "3600", "job/report", "--", "echo", "ran")
    assert ran(rwlock(url, *words))
    assert not ran(rwlock(url, *words))


def test_the_locks_of_the_library(url: str) -> None:
    """``locks.once("report")`` is `--once-per` of `once/report`."""

    async def job() -> None:
        pytest.fail("it has run already")

    async def call() -> None:
        async with connect(url) as locks:
            assert not await locks.once("report", job, period=86400)

    words = ("--once-per", DAY, "once/report", "--", "echo", "ran")
    assert ran(rwlock(url, *words))
    anyio.run(call)


@pytest.mark.parametrize("command", ["no-such-command", "./report.txt", ""])
def test_a_machine_without_the_command(tmp_path: Path, command: str) -> None:
    """It leaves the period to the others."""
    url, words = f"sqlite:///{tmp_path}/locks.db", ("--once-per", DAY, "job/report")
    (tmp_path / "report.txt").write_text("no program")
    name = str(tmp_path / command) if command.startswith("./") else command
    done = rwlock(url, *words, "--", name)
    assert done.returncode == 127
    assert "not found, or not executable" in done.stderr
    assert ran(rwlock(url, *words, "--", "echo", "ran"))


def test_a_holder_that_is_killed_with_at_most(url: str) -> None:
    """The next one runs it when the lock of the dead one is over."""
    once = ("--once-per", DAY, "--at-most", "0.5", "job/report", "--")
    with running(url, *once) as process:
        process.kill()
    wait_until_free(url, "job")
    assert ran(rwlock(url, *once, "echo", "ran"))
    assert not ran(rwlock(url, *once, "echo", "ran"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_is_killed_or_paused(url: str, number: signal.Signals) -> None:
    """Nobody runs it again in this period, also after the lease of the lock."""
    once = ("--once-per", DAY, "--lease", "0.5", "job/report", "--")
    with running(url, *once) as process:
        process.send_signal(number)
        wait_until_free(url, "job")
        assert not ran(rwlock(url, *once, "echo", "ran"))
        process.send_signal(signal.SIGCONT)
        process.wait(TIMEOUT)
    lost_or_killed = 76 if number is signal.SIGSTOP else -signal.SIGKILL
    assert process.returncode == lost_or_killed


def test_a_store_that_is_restarted_at_the_time(tmp_path: Path) -> None:
    with closing(RedisServer(tmp_path)) as server:
        server.stop()
        with subprocess.Popen(
            [*RWLOCK, "run", "--once-per", DAY, "job/report", "--", "echo", "ran"],
            env=environment(RWLOCK_URL=server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            waits = process.stderr.readline()
            server.start()
            output, rest = process.communicate(timeout=TIMEOUT)
    assert "waiting for the store, 60 s at most" in waits
    assert (process.returncode, output, rest) == (0, "ran\n", "")


def test_unsupported_uses_are_refused(tmp_path: Path) -> None:
    url, command = f"sqlite:///{tmp_path}/locks.db", ("job/report", "--", "true")
    for words, message in [
        (("--once-per", "0"), "period=0.0 is out of range"),
        (("--retry",), "--retry and --at-most are for --once-per"),
        (("--at-most", "60"), "--retry and --at-most are for --once-per"),
        (("--read", "--once-per", "60"), "need --write"),
    ]:
        done = rwlock(url, *words, *command)
        assert done.returncode == 2
        assert message in done.stderr


def test_another_exit_code_and_a_wait(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    words = ("--once-per", DAY, "--conflict-exit-code", "9", "job/report", "--", "true")
    assert rwlock(url, *words).returncode == 0
    assert rwlock(url, "--timeout", "5", *words).returncode == 9
