"""`rwlock run --limit`, and what `ls`, `show` and `break` say of a semaphore."""

from __future__ import annotations

import pytest

from tests.cli.fix_cli import Store, eventually


def test_so_many_commands_at_a_time(store: Store) -> None:
    """The next one waits; `ls` and `show` count permits, and `break` ends one."""
    store.leave_behind("order", "1", "x")  # so that there is a store to look at
    words = ("run", "--limit", "2", "api/stripe", "sleep", "60")
    with store.running(*words), store.running(*words):
        eventually(
            lambda: len(store.json("show", "--semaphore", "api/stripe")["holders"]) == 2
        )
        full = store.rwlock(
            "run", "--limit", "2", "--timeout", "0", *words[3:4], "true"
        )
        assert full.returncode == 75
        assert "held by permit " in full.stderr
        (listed,) = store.json("ls", "api")
        assert (listed["resource"], listed["limit"]) == ("api/stripe", 2)
        assert [holder["mode"] for holder in listed["holders"]] == ["permit"] * 2
        assert store.rwlock("ls").stdout.count("permit (2 of 2)") == 2
        shown = store.rwlock("show", "--semaphore", "api/stripe").stdout
        assert shown.startswith("api/stripe is held (2 of 2 permits), last fence ")
        assert store.rwlock("show", "api/stripe").stdout == "api/stripe is free\n"
        assert "limit" not in store.json("show", "api/stripe")
        one = listed["holders"][0]
        seen = ("--holder", one["holder"], "--fence", str(one["fence"]))
        broken = ("break", *seen, "--reason", "it hangs", "api/stripe")
        assert store.rwlock(*broken).returncode == 1, "of the lock of that name"
        assert store.rwlock(*broken, "--semaphore").returncode == 0
        left = store.json("show", "--semaphore", "api/stripe")
        assert len(left["holders"]) == 1


def test_a_free_permit(store: Store) -> None:
    """The exit code is the command's; a mutex of that name is not in the way."""
    with store.held(name="api/stripe"):
        done = store.rwlock("run", "--limit", "1", "api/stripe", "sh", "-c", "exit 3")
        assert (done.returncode, done.stderr) == (3, "")
    assert store.json("ls") == []


@pytest.mark.parametrize("limit", ["0", "-1", "251", "many"])
def test_limits_that_are_none(store: Store, limit: str) -> None:
    done = store.rwlock("run", "--limit", limit, "api/stripe", "true")
    assert done.returncode == 2
    assert "--limit" in done.stderr


@pytest.mark.parametrize("option", [("--read",), ("--write",), ("--once-per", "60")])
def test_options_of_locks(store: Store, option: tuple[str, ...]) -> None:
    done = store.rwlock("run", "--limit", "2", *option, "api/stripe", "true")
    assert done.returncode == 2
    assert "--limit is for a semaphore" in done.stderr
