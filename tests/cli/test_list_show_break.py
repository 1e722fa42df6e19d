"""`rwlock ls`, `show`, `stale` and `break`: what is shown, and what may be broken."""

from __future__ import annotations

import io
import json
import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote.cli.main import main
from aiorwlock_remote.sync import connect as sync_connect
from tests.cli.fix_cli import (
    TIMEOUT,
    Store,
    environment,
    eventually,
    every_layout,
    here,
    line,
)

TICKET = "a-secret-ticket"
HOLDER_KEYS = {
    *("holder", "mode", "fence", "since", "age", "expires_in"),
    *("host", "pid", "task", "reason", "foreign"),
}
RESOURCE_KEYS = {
    *("resource", "type", "id", "locked", "fence", "holders", "queue"),
    *("created_at", "updated_at", "clock_set_back"),
}


@pytest.fixture
def left(store: Store) -> Store:
    """A store with a grant that never ends."""
    store.leave_behind("order", "a/b", TICKET)
    return store


@pytest.fixture
def foreign(store: Store) -> Store:
    """A store in which another program sits."""
    store.leave_behind("other", "1", "x")
    assert store.foreigner.take(("order", 7), TICKET)
    return store


def only_holder(resource: dict[str, Any]) -> dict[str, Any]:
    (holder,) = resource["holders"]
    assert isinstance(holder, dict)
    return holder


# --------------------------------------------------------------------- looking


@every_layout
def test_ls_json(left: Store) -> None:
    (resource,) = left.json("ls")
    assert set(resource) == RESOURCE_KEYS
    assert (resource["resource"], resource["type"]) == ("order/a/b", "order")
    assert resource["locked"] is True
    holder = only_holder(resource)
    assert set(holder) == HOLDER_KEYS
    assert re.fullmatch("[0-9a-f]{12}", holder["holder"])
    assert holder["fence"] == resource["fence"]
    assert (holder["mode"], holder["expires_in"]) == ("write", None)
    assert holder["since"].endswith("Z")
    age = datetime.now(UTC) - datetime.fromisoformat(holder["since"])
    assert 0 <= age.total_seconds() < TIMEOUT


def test_ls_text(left: Store) -> None:
    holder = only_holder(left.json("ls")[0])
    head, row = left.rwlock("ls").stdout.splitlines()
    assert head.split()[:4] == ["RESOURCE", "MODE", "HOLDER", "FENCE"]
    words = row.split()
    assert words[:2] == ["order/a/b", "write"]
    assert words[2:4] == [holder["holder"], str(holder["fence"])]
    assert "never ends" in row


@pytest.mark.parametrize("words", [["ls"], ["stale"], ["ls", "--json"]])
def test_what_cannot_be_read_is_named(tmp_path: Path, words: list[str]) -> None:
    """The other resources are shown all the same."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with sync_connect(url) as locks:
        for number in (1, 2):
            locks.mutex("order", number).acquire(lease=None).detach()
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
        damage = "UPDATE doormans SET record = '{\"v\": 99}' WHERE resource_id = '1'"
        assert db.execute(damage).rowcount == 1
    ran = here(words, environment(RWLOCK_URL=url))
    assert ran.returncode == 0
    assert "order/2" in ran.stdout
    assert "order/1" not in ran.stdout
    said = ran.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("rwlock: cannot be read: order/1: ")


def test_ls_of_a_type(left: Store) -> None:
    left.leave_behind("invoice", "1", "x")
    assert [r["resource"] for r in left.json("ls")] == ["invoice/1", "order/a/b"]
    assert [r["resource"] for r in left.json("ls", "invoice")] == ["invoice/1"]
    assert left.json("ls", "inv") == []
    nothing = left.rwlock("ls", "inv")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing of type 'inv'" in nothing.stderr


@pytest.mark.parametrize("command", ["ls", "stale"])
def test_a_resource_is_no_type(left: Store, command: str) -> None:
    """It is held, and "nothing is held" would be taken for the answer."""
    output = left.rwlock(command, "order/a/b").stderr
    assert "nothing of type 'order/a/b'" in output
    assert "rwlock show order/a/b" in output


@every_layout
def test_a_slash_in_the_type(store: Store) -> None:
    """As ``connect(…, prefix="test/")`` has it: what is shown names that very lock."""
    store.leave_behind("test/order", "42", TICKET)
    (resource,) = store.json("ls")
    assert resource["resource"] == "test%2Forder/42"
    assert (resource["type"], resource["id"]) == ("test/order", "42")
    for kind in ("test/order", "test%2Forder"):
        for command in ("ls", "stale"):
            assert len(store.json(command, kind)) == 1
    name = store.rwlock("ls").stdout.splitlines()[1].split()[0]
    assert store.rwlock("run", "--timeout", "0", name, "true").returncode == 75
    holder = only_holder(store.json("show", name))
    assert store.rwlock("break", name, *seen(holder)).returncode == 0
    assert store.json("ls") == []


@every_layout
def test_a_prefix(store: Store) -> None:
    """``--prefix`` and ``RWLOCK_PREFIX`` as ``connect(…, prefix=…)``: short names."""
    store.leave_behind("shop/web", "1", TICKET)
    store.leave_behind("other", "1", "x")
    (mine,) = store.json("ls", "--prefix", "shop/")
    assert (mine["resource"], mine["type"]) == ("web/1", "web")
    output = store.rwlock("ls", RWLOCK_PREFIX="shop/").stdout
    assert "web/1" in output
    assert "shop" not in output
    run = ("run", "--timeout", "0", "web/1", "true")
    assert store.rwlock(*run).returncode == 0
    assert store.rwlock(*run, RWLOCK_PREFIX="shop/").returncode == 75
    holder = only_holder(store.json("show", "--prefix", "shop/", "web/1"))
    broken = store.rwlock("break", "--prefix", "shop/", "web/1", *seen(holder))
    assert broken.returncode == 0
    assert [r["resource"] for r in store.json("ls")] == ["other/1"]


def test_a_prefix_given_twice(store: Store) -> None:
    url = f"{store.url}?prefix=shop-"
    store.leave_behind("shop-web", "1", TICKET)
    for words in ((), ("--prefix", "shop-")):
        assert "web/1" in store.rwlock("ls", *words, "--url", url).stdout
    refused = store.rwlock("ls", "--prefix", "eu-", "--url", url)
    assert refused.returncode == 2
    assert "prefix is 'eu-' for connect and 'shop-' in the URL" in refused.stderr
    assert store.rwlock("ls", "--prefix", "{").returncode == 2


def test_a_name_too_long_to_be_shown(store: Store) -> None:
    """It is found by what is shown of it; what takes a lock wants all of it."""
    store.leave_behind("file", f"/srv/{'x' * 300}", TICKET)
    name = store.rwlock("ls").stdout.splitlines()[1].split()[0]
    assert "…" in name
    holder = only_holder(store.json("show", name))
    whole = only_holder(store.json("show", f"file//srv/{'x' * 300}"))
    assert whole["holder"] == holder["holder"]
    output = store.rwlock("run", "--timeout", "0", name, "true")
    assert output.returncode == 2
    assert "whole" in output.stderr
    assert store.rwlock("break", name, *seen(holder)).returncode == 0
    assert store.json("ls") == []
    assert "is free" in store.rwlock("show", name).stdout


@every_layout
def test_show_who_holds_and_who_waits(store: Store) -> None:
    with store.held("--reason", "refund") as holder:
        waits = ("run", "--reason", "report", "--read", "order/42", "true")
        with store.running(*waits) as waiting:
            eventually(lambda: bool(store.json("show", "order/42")["queue"]))
            (queued,) = store.json("show", "order/42")["queue"]
            assert (queued["mode"], queued["waiting"]) == ("read", 1)
            assert (queued["pid"], queued["reason"]) == (waiting.pid, "report")
            text = store.rwlock("show", "order/42").stdout
            for word in ("held", holder["holder"], str(holder["fence"]), "refund"):
                assert word in text
            assert f"/{waiting.pid}: report" in text
            assert "1 read" in store.rwlock("ls").stdout


@pytest.mark.parametrize("command", ["ls", "stale"])
def test_fail_if_there_is_any(left: Store, command: str) -> None:
    """For cron and Nagios: the exit code says it."""
    assert left.rwlock(command).returncode == 0
    assert left.rwlock(command, "--fail").returncode == 1
    assert left.rwlock(command, "--fail", "--json").returncode == 1
    assert left.rwlock(command, "--fail", "another").returncode == 0


def test_endless_holders_come_first(left: Store) -> None:
    with left.held(name="a/1"):
        assert [seen["resource"] for seen in left.json("ls")] == ["order/a/b", "a/1"]


@every_layout
def test_the_command_that_is_shown_breaks_what_is_shown(left: Store) -> None:
    command = left.rwlock("stale").stdout.splitlines()[-1]
    assert command.split()[:2] == ["rwlock", "break"]
    assert left.rwlock("show", "order/a/b").stdout.splitlines()[-1] == command
    done = left.rwlock(*shlex.split(command)[1:])
    assert (done.returncode, done.stderr) == (0, "")
    assert left.json("ls") == []


def test_the_command_that_is_shown_names_the_store(left: Store) -> None:
    words = ("--url", left.url, "order/a/b")
    command = left.rwlock("show", *words).stdout.splitlines()[-1]
    assert f"--url {left.url} " in command
    assert left.rwlock(*shlex.split(command)[1:]).returncode == 0


def test_an_ended_lease_blocks_nobody(store: Store) -> None:
    with store.running(
        "run", "--lease", "1", "order/1", "sh", "-c", "echo up; read _"
    ) as process:
        line(process, "up")
        process.kill()
        process.wait()
        eventually(lambda: store.json("show", "order/1")["locked"] is False)
    assert "free: the lease has ended" in store.rwlock("show", "order/1").stdout
    assert "break" not in store.rwlock("show", "order/1").stdout
    assert "free, nothing to do: order/1" in store.rwlock("stale").stdout


def test_show_what_nobody_holds(left: Store) -> None:
    seen = left.json("show", "never/used")
    assert (seen["locked"], seen["holders"], seen["fence"]) == (False, [], 0)
    assert seen["created_at"] is None
    assert left.rwlock("show", "never/used").stdout == "never/used is free\n"


@every_layout
def test_stale(left: Store) -> None:
    with left.held():  # one that is alive
        (resource,) = left.json("stale")
        assert resource["resource"] == "order/a/b"
        text = left.rwlock("stale").stdout
        assert "order/a/b" in text
        assert "order/42" not in text
    assert left.json("stale", "--older-than", "3600") == []
    (same,) = left.json("stale", "order")
    assert same["resource"] == resource["resource"]
    assert left.json("stale", "another") == []


@every_layout
def test_a_foreign_program_looks_left_behind(foreign: Store) -> None:
    found = {seen["resource"]: only_holder(seen) for seen in foreign.json("stale")}
    assert found.keys() == {"order/7", "other/1"}
    assert found["order/7"]["foreign"] is True
    assert found["order/7"] | {"age": 0} == only_holder(
        foreign.json("show", "order/7")
    ) | {"age": 0}
    assert "order/7" in foreign.rwlock("stale").stdout


def test_no_ticket_is_shown(left: Store, foreign: Store) -> None:
    assert left.url == foreign.url
    for words in (["ls"], ["stale"], ["show", "order/a/b"], ["show", "order/7"]):
        for more in ([], ["--json"]):
            assert TICKET not in left.rwlock(*words, *more).stdout


@every_layout
def test_a_foreign_program(foreign: Store) -> None:
    holder = only_holder(foreign.json("show", "order/7"))
    assert (holder["foreign"], holder["fence"]) == (True, None)
    row = foreign.rwlock("ls", "order").stdout.splitlines()[1]
    assert row.split()[:4] == ["order/7", "write", holder["holder"], "-"]
    assert foreign.rwlock("run", "--timeout", "0", "order/7", "true").returncode == 75


# ------------------------------------------------------------- what is broken, when


def seen(one: dict[str, Any], **other: str) -> list[str]:
    fence = "-" if one["fence"] is None else str(one["fence"])
    given = {"holder": one["holder"], "fence": fence, "reason": "it is dead"}
    return [
        word for key, value in (given | other).items() for word in (f"--{key}", value)
    ]


@every_layout
def test_break(left: Store) -> None:
    holder = only_holder(left.json("show", "order/a/b"))
    done = left.rwlock("break", "order/a/b", *seen(holder))
    assert (done.returncode, done.stderr) == (0, "")
    assert "order/a/b" in done.stdout
    assert "it is dead" in done.stdout
    assert left.json("ls") == []
    again = left.rwlock("break", "order/a/b", *seen(holder))
    assert again.returncode == 1
    assert "nobody" in again.stderr


def test_break_as_json(left: Store) -> None:
    holder = only_holder(left.json("show", "order/a/b"))
    report = left.json("break", "order/a/b", *seen(holder))
    assert report["broken"] is True
    assert report["reason"] == "it is dead"
    assert (report["holder"], report["fence"]) == (holder["holder"], holder["fence"])
    assert set(report["now"]) == RESOURCE_KEYS
    assert report["now"]["locked"] is False
    done = left.rwlock("break", "order/a/b", *seen(holder), "--json")
    assert (done.returncode, json.loads(done.stdout)["broken"]) == (1, False)


@pytest.mark.parametrize(
    "other", [{"fence": "12"}, {"fence": "-"}, {"holder": "0123456789ab"}]
)
def test_break_only_what_was_seen(left: Store, other: dict[str, str]) -> None:
    holder = only_holder(left.json("show", "order/a/b"))
    done = left.rwlock("break", "order/a/b", *seen(holder, **other))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert holder["holder"] in done.stderr  # who holds it instead
    assert only_holder(left.json("show", "order/a/b"))["holder"] == holder["holder"]


def test_break_one_reader_of_two(store: Store) -> None:
    store.make(lambda locks: locks.acquire_readers_lock("order", 1, "one"))
    store.make(lambda locks: locks.acquire_readers_lock("order", 1, "two"))
    first, second = store.json("show", "order/1")["holders"]
    assert first["fence"] == second["fence"]
    assert store.rwlock("break", "order/1", *seen(first)).returncode == 0
    assert only_holder(store.json("show", "order/1")) | {"age": 0} == second | {
        "age": 0
    }


@every_layout
def test_break_a_foreign_program(foreign: Store) -> None:
    holder = only_holder(foreign.json("show", "order/7"))
    wrong = foreign.rwlock("break", "order/7", *seen(holder, fence="1"))
    assert wrong.returncode == 1
    assert foreign.foreigner.read(("order", 7)) == TICKET
    assert foreign.rwlock("break", "order/7", *seen(holder)).returncode == 0
    assert foreign.foreigner.read(("order", 7)) is None
    assert foreign.rwlock("run", "--timeout", "0", "order/7", "true").returncode == 0


# ------------------------------------------------------------------- at a terminal


class Terminal(io.StringIO):
    """Where a user sits and types an answer."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """Run a command at a terminal; return what it shows."""

    def run(store: Store, *words: str, answer: str = "", columns: int = 80) -> Terminal:
        monkeypatch.setenv("RWLOCK_URL", store.url)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)
        shown = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr("sys.stdout", shown)
        main(words)
        return shown

    return run


@pytest.mark.parametrize(("answer", "left_over"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_break_asks(
    left: Store, terminal: Callable[..., Terminal], answer: str, left_over: int
) -> None:
    holder = only_holder(left.json("show", "order/a/b"))
    output = terminal(
        left, "break", "order/a/b", *seen(holder), answer=answer
    ).getvalue()
    assert "end the grant of order/a/b" in output
    assert holder["holder"] in output
    assert len(left.json("ls")) == left_over


def test_break_with_yes_does_not_ask(
    left: Store, terminal: Callable[..., Terminal]
) -> None:
    holder = only_holder(left.json("show", "order/a/b"))
    output = terminal(left, "break", "--yes", "order/a/b", *seen(holder)).getvalue()
    assert "[y/N]" not in output
    assert left.json("ls") == []


def test_a_holder_that_came_meanwhile_is_not_broken(
    left: Store, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = only_holder(left.json("show", "order/a/b"))

    def think(*_: object, **__: object) -> None:
        here(["break", "order/a/b", *seen(holder)], environment(RWLOCK_URL=left.url))
        left.leave_behind("order", "a/b", "another")

    monkeypatch.setattr("click.confirm", think)
    terminal(left, "break", "order/a/b", *seen(holder))
    assert only_holder(left.json("show", "order/a/b"))["holder"] != holder["holder"]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_word_is_broken(
    left: Store, terminal: Callable[..., Terminal], columns: int
) -> None:
    with left.held("--reason", "a long reason with many words, more than one line"):
        output = terminal(left, "ls", columns=columns).getvalue()
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert max(map(len, plain_text.splitlines())) <= columns
    for word in ("order/a/b", "order/42", "never", "reason", "words,"):
        assert word in plain_text.split()
    red = [row for row in output.splitlines() if "\x1b[31m" in row]
    assert [row.split("m", 1)[1].split()[0] for row in red] == ["order/a/b"]
