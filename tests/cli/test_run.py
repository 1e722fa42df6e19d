"""`rwlock run`: what comes of the command, who gets in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.cli.fix_cli import (
    ROOT,
    RWLOCK,
    TIMEOUT,
    Store,
    environment,
    eventually,
    every_store,
)

if TYPE_CHECKING:
    from pathlib import Path

# -------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 75", 75),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
    ],
)
def test_exit_code_is_the_commands(store: Store, command: str, code: int) -> None:
    done = store.rwlock("run", "order/42", "--", "sh", "-c", command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert store.json("ls") == []


def test_command_not_found(store: Store) -> None:
    done = store.rwlock("run", "order/42", "--", "no-such-command-here")
    assert done.returncode == 127
    assert "no-such-command-here" in done.stderr
    assert store.json("ls") == []


def test_empty_command(store: Store) -> None:
    done = store.rwlock("run", "order/42", "--", "")
    assert done.returncode == 127
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("start", ["trap '' CHLD; exec", "exec >&-; exec"])
def test_odd_surroundings(store: Store, start: str) -> None:
    """SIGCHLD ignored, as some supervisors start children; stdout closed."""
    words = [*RWLOCK, "run", "order/42", "sh", "-c", "exit 3"]
    done = subprocess.run(
        ["sh", "-c", f'{start} "$@"', "sh", *words],
        cwd=ROOT,
        env=environment(RWLOCK_URL=store.url),
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 3
    assert store.json("ls") == []


def test_a_command_whose_name_is_no_text(store: Store, tmp_path: Path) -> None:
    """File names are bytes."""
    name = str(tmp_path / os.fsdecode(b"\xe9t\xe9"))
    shutil.copy("/bin/true", name)
    command = [*RWLOCK, "run", "order/1", "--", name]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(RWLOCK_URL=store.url), check=False
    )
    assert done.returncode == 0


def test_command_not_executable(store: Store, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program\n")
    done = store.rwlock("run", "order/42", str(tmp_path / "text"))
    assert done.returncode == 126
    assert store.json("ls") == []


@pytest.mark.parametrize("by", ["path", "name"])
def test_a_script_that_names_no_interpreter(
    store: Store, tmp_path: Path, by: str
) -> None:
    """As under flock(1), and whatever else calls execvp: /bin/sh reads it."""
    script = tmp_path / "script"
    script.write_text('echo "$0" "$@"; exit 3\n')
    script.chmod(0o700)
    command = str(script) if by == "path" else script.name
    path = f"/nowhere:{tmp_path}:{os.environ['PATH']}"
    done = store.rwlock("run", "order/42", command, "a b", "-c", PATH=path)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"{script} a b -c\n"
    assert store.json("ls") == []


def test_options_after_the_name_are_the_commands(store: Store) -> None:
    done = store.rwlock("run", "order/42", "echo", "--read", "--", "-n")
    assert done.stdout == "--read -- -n\n"


@every_store
def test_environment(store: Store) -> None:
    show = 'echo "$RWLOCK_RESOURCE $RWLOCK_FENCE ${RWLOCK_TICKET-none}"'
    name = "order/a/b c"
    resource, *rest = store.rwlock("run", name, "sh", "-c", show).stdout.rsplit(" ", 2)
    assert resource == name
    fence, ticket = rest
    assert int(fence) > 0
    assert ticket == "none\n"
    show = 'echo "$RWLOCK_FENCE"; "$0" -m aiorwlock_remote show --json "$1"'
    again, shown = store.rwlock(
        "run", name, "sh", "-c", show, sys.executable, name
    ).stdout.split("\n", 1)
    assert int(again) == json.loads(shown)["fence"]
    assert int(again) > int(fence)


def test_a_ticket_is_not_inherited_from_outside(store: Store) -> None:
    show = "echo ${RWLOCK_TICKET-none}"
    done = store.rwlock("run", "order/1", "sh", "-c", show, RWLOCK_TICKET="of another")
    assert done.stdout == "none\n"


ADOPT = """
import os, sys, anyio
from aiorwlock_remote import connect

async def main():
    async with connect(os.environ["RWLOCK_URL"]) as locks:
        held = await locks.adopt(os.environ["RWLOCK_TICKET"])
        assert held.fence == int(os.environ["RWLOCK_FENCE"])
        held.check()
        if sys.argv[1] == "keep":
            held.detach()
    sys.exit(5)

anyio.run(main)
"""


EXPORT = ("--export-ticket", "--lease", "20", "order/42", sys.executable, "-c", ADOPT)


@every_store
def test_exported_ticket_can_be_adopted(store: Store) -> None:
    done = store.rwlock("run", *EXPORT, "keep")
    assert (done.returncode, done.stderr) == (5, "")
    assert store.json("ls") == []


def test_exported_ticket_can_be_released(store: Store) -> None:
    done = store.rwlock("run", *EXPORT, "release")
    assert (done.returncode, done.stderr) == (5, "")
    assert store.json("ls") == []


@pytest.mark.parametrize("store", ["cassandra"], indirect=True)
def test_a_free_row_does_not_tell_a_release_from_a_break(store: Store) -> None:
    done = store.rwlock("run", *EXPORT, "release")
    assert done.returncode == 76
    assert "forced" in done.stderr
    assert store.json("ls") == []


# --------------------------------------------------------------- who gets in


@every_store
def test_conflict_is_75_and_says_who(store: Store) -> None:
    with store.held("--reason", "refund") as holder:
        done = store.rwlock("run", "--timeout", "0", "order/42", "true")
        assert done.returncode == 75
        assert len(done.stderr.splitlines()) == 1
        assert holder["holder"] in done.stderr
        assert "refund" in done.stderr
        other = ("--timeout", "0.1", "--conflict-exit-code", "9", "--read")
        assert store.rwlock("run", *other, "order/42", "true").returncode == 9
        assert store.rwlock("run", "--timeout", "0", "order/43", "true").returncode == 0
    assert store.rwlock("run", "--timeout", "0", "order/42", "true").returncode == 0


@every_store
def test_readers_share(store: Store) -> None:
    with store.held("--read") as holder:
        assert holder["mode"] == "read"
        now = ("--timeout", "0", "order/42", "true")
        assert store.rwlock("run", "--read", *now).returncode == 0
        assert store.rwlock("run", "--write", *now).returncode == 75


def test_the_reason_is_the_command_by_default(store: Store) -> None:
    with store.held() as holder:
        assert holder["reason"] == "sh"


@every_store
def test_runs_of_one_name_exclude_each_other(store: Store, tmp_path: Path) -> None:
    # mkdir fails if the other is inside.
    inside = f"cd {tmp_path}; mkdir inside || exit 1; echo x >>log; rmdir inside"

    def run(_: int) -> int:
        return store.rwlock("run", "order/42", "--", "sh", "-c", inside).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(12))) == [0] * 12
    assert (tmp_path / "log").read_text() == "x\n" * 12


@every_store
def test_signal_while_waiting_leaves_the_queue(store: Store) -> None:
    with store.held(), store.running("run", "order/42", "true") as waiting:
        eventually(lambda: bool(store.json("show", "order/42")["queue"]))
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(TIMEOUT) == 128 + 15
        assert store.json("show", "order/42")["queue"] == []
