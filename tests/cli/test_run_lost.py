"""`rwlock run` whose lock is lost, or that is killed: what becomes of its command."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.cli.fix_cli import TIMEOUT, Store, every_store, line

if TYPE_CHECKING:
    pass

# -------------------------------------------------------------- the command


def break_(store: Store, holder: dict[str, Any]) -> None:
    seen = ("--holder", holder["holder"], "--fence", str(holder["fence"]))
    done = store.rwlock("break", "order/42", *seen, "--reason", "a test")
    assert done.returncode == 0


@every_store
def test_lost_is_term_and_76(store: Store) -> None:
    command = "trap 'echo stopped; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    words = ("--lease", "1", "order/42", "sh", "-c", command)
    with store.running("run", *words) as process:
        line(process, "up")
        break_(store, store.json("show", "order/42")["holders"][0])
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (76, "stopped\n")
    assert "forced" in err
    assert "the command ended with exit code 7" in err


def test_a_command_that_ignores_term_is_killed(store: Store) -> None:
    command = "trap '' TERM; echo up; exec sleep 60"
    words = ("--lease", "1", "--grace", "0.1", "order/42", "sh", "-c", command)
    with store.running("run", *words) as process:
        line(process, "up")
        break_(store, store.json("show", "order/42")["holders"][0])
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 76
    assert "SIGKILL" in err


def test_lost_while_nobody_reads_what_it_says(store: Store) -> None:
    """As after `rwlock run … 2>&1 | head -1`: the command has to end all the same."""
    command = "trap 'echo stopped; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    words = ("--lease", "1", "order/42", "sh", "-c", command)
    with store.running("run", *words) as process:
        line(process, "up")
        assert process.stderr is not None
        process.stderr.close()
        break_(store, store.json("show", "order/42")["holders"][0])
        line(process, "stopped")
        assert process.wait(TIMEOUT) == 76


def test_lost_without_being_noticed_before_the_end_is_76(store: Store) -> None:
    with store.running("run", "order/42", "sh", "-c", "echo up; read _") as process:
        line(process, "up")
        break_(store, store.json("show", "order/42")["holders"][0])
        _, err = process.communicate("\n", timeout=TIMEOUT)  # long before a renewal
    assert process.returncode == 76
    assert len(err.splitlines()) == 1
    assert "exit code 0" in err


def test_a_lock_lost_while_the_command_was_stopped_ends_it_with_76(
    store: Store,
) -> None:
    """It sees the end of the command and that of the lease at the same time."""
    words = ("--lease", "1", "order/42", "sh", "-c", "echo up; read _; echo bye")
    with store.running("run", *words) as process:
        line(process, "up")
        process.send_signal(signal.SIGSTOP)
        try:
            after = store.rwlock("run", "order/42", "true")
            assert after.returncode == 0, "the lease has ended"
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line(process, "bye")
        finally:
            process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 76
    assert "expired" in err


@every_store
def test_a_killed_run_frees_the_lock_when_its_lease_ends(store: Store) -> None:
    words = ("--lease", "1", "order/42", "sh", "-c", "echo up; read _")
    with store.running("run", *words) as process:
        line(process, "up")
        fence = store.json("show", "order/42")["fence"]
        process.kill()
        process.wait()
        with store.running(
            "run", "order/42", "sh", "-c", "echo $RWLOCK_FENCE"
        ) as other:
            assert other.stdout is not None
            assert int(other.stdout.readline()) > fence
