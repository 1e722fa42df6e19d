"""Records that nobody uses go; nothing that matters goes with them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from aiorwlock_remote.core.commands import Acquire, Claim
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from tests.backends.files.one_resource import LEASE, ResourceClient

IDLE, HELD, WAITED, FOREIGN = (resource("thing", n) for n in range(4))
MEMORY = 3600.0


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name[0] != "."}


def test_only_what_is_idle(tmp_path: Path) -> None:
    client = ResourceClient(tmp_path)
    for of in (IDLE, HELD, WAITED, FOREIGN):
        client.take("ours", of=of)
        client.give("ours", of=of)
    never = Acquire((Claim("for ever", None),), Mode.WRITE)
    client.ask(never, HELD)
    client.take("ours", of=WAITED)
    waits = Acquire(
        (Claim("waits", LEASE),),
        Mode.WRITE,
        client_id="g",
        may_queue=True,
        entry_ttl=10**12,
    )
    client.ask(waits, WAITED)
    client.give("ours", of=WAITED)
    (tmp_path / "thing,3.lock").write_text("theirs\n")
    before = names(tmp_path)
    client.connection.forget(MEMORY)
    assert names(tmp_path) == before, "not yet"
    client.clock.by += 2 * MEMORY
    client.connection.forget(MEMORY)
    assert before - names(tmp_path) == {"thing,0.doorman"}


def test_files_left_by_killed_processes_are_purged(tmp_path: Path) -> None:
    client = ResourceClient(tmp_path)
    (tmp_path / ".new-4711").touch()
    (tmp_path / "thing,1.doorman").touch()
    client.connection.forget(MEMORY)
    assert (tmp_path / ".new-4711").exists(), "it may still be wanted"
    client.clock.by += 100
    client.connection.forget(MEMORY)
    assert {p.name for p in tmp_path.iterdir()} == {".rwlock", ".changes", ".boot"}


@pytest.mark.slow
def test_while_others_take_and_give(tmp_path: Path) -> None:
    """Removed and made anew all the time: still one holder, and fences rise."""
    fences: list[int] = []
    inside: list[str] = []
    failures: list[str] = []
    done = threading.Event()

    def work(name: str) -> None:
        client, got = ResourceClient(tmp_path, sync=False), 0
        while got < 200 and not done.is_set():
            ticket = f"{name} {got}"
            fence = client.take(ticket)
            if not fence:
                continue
            inside.append(name)
            if len(inside) > 1 or (fences and fence <= fences[-1]):
                failures.append(f"{fence} after {fences[-1:]}, inside {inside}")
            fences.append(fence)
            inside.remove(name)
            client.give(ticket)
            got += 1

    def clean() -> None:
        client = ResourceClient(tmp_path, sync=False)
        while not done.is_set():
            client.connection.forget(0.0)

    workers = [threading.Thread(target=work, args=(n,)) for n in "abc"]
    cleaner = threading.Thread(target=clean)
    for thread in (*workers, cleaner):
        thread.start()
    for thread in workers:
        thread.join(60)
    done.set()
    cleaner.join(10)
    assert not failures
    assert len(fences) == 600
