"""Killed at every system call: ``python -m tests.backends.files.killed``.

A scenario's step is carried out in a child that kills itself before its n-th system
call (of those that matter here), or in the middle of it if it writes; for each n until
one gets through. What it left behind has to be as good as all of it, or nothing.
Prints how many calls each has. A process without threads, so that it may fork.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiorwlock_remote.core.commands import Acquire, Claim, Downgrade
from aiorwlock_remote.core.ticket import Mode
from tests.backends.files.one_resource import LEASE, ResourceClient

CALLS = (
    *("open", "close", "write", "pwrite", "pread", "read", "fdatasync", "fsync"),
    *("link", "unlink", "rename", "utime", "stat", "fstat", "listdir"),
)
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108
"""Where a sync costs nothing, if there is such a place."""
READERS = 40  # more than the smallest slot holds

Outcome = tuple[int, str | None]
"""The highest fence returned so far, and the ticket that holds, if one was returned."""
Act = Callable[[ResourceClient, Path], Outcome]


def nothing(_client: ResourceClient, _folder: Path) -> Outcome:
    return 0, None


def take(client: ResourceClient, _folder: Path) -> Outcome:
    return client.take("first"), "first"


def used(client: ResourceClient, folder: Path) -> Outcome:
    fence, _ = take(client, folder)
    client.give("first")
    return fence, None


def again(client: ResourceClient, _folder: Path) -> Outcome:
    return client.take("second"), "second"


def give(client: ResourceClient, _folder: Path) -> Outcome:
    client.give("first")
    return 0, None


def hand_on(client: ResourceClient, _folder: Path) -> Outcome:
    client.give("first", Acquire((Claim("second", LEASE),), Mode.WRITE))
    return client.look().record.last, "second"


def downgrade(client: ResourceClient, _folder: Path) -> Outcome:
    client.ask(Downgrade("first", Claim("reader", LEASE)))
    return client.look().record.last, "reader"


def crowd(client: ResourceClient, _folder: Path) -> Outcome:
    claims = tuple(Claim(f"reader {n}" + "x" * 100, LEASE) for n in range(READERS))
    client.ask(Acquire(claims, Mode.READ))
    return client.look().record.last, claims[0].ticket


def foreign(client: ResourceClient, folder: Path) -> Outcome:
    fence, _ = used(client, folder)
    (folder / "order,42.lock").write_text("theirs\n")
    return fence, "theirs"


def force(client: ResourceClient, _folder: Path) -> Outcome:
    seat = client.look().seat
    assert seat is not None
    client.force(seat.value)
    return 0, None


def forget(client: ResourceClient, _folder: Path) -> Outcome:
    client.clock.by += 7200
    client.connection.forget(3600)
    return 0, None


def emptied(_client: ResourceClient, folder: Path) -> Outcome:
    for path in folder.iterdir():
        path.unlink()
    return 0, None


def open_new(_client: ResourceClient, folder: Path) -> Outcome:
    ResourceClient(folder)
    return 0, None


SCENARIOS: dict[str, tuple[Act, Act]] = {
    "first take": (nothing, take),
    "take": (used, again),
    "release": (take, give),
    "hand on": (take, hand_on),
    "downgrade": (take, downgrade),
    "grow": (used, crowd),
    "force": (foreign, force),
    "forget": (used, forget),
    "open": (emptied, open_new),
}


def deadly(nth: int, *, half: bool) -> None:
    """From now on this process dies at its n-th call; ``half``: a write is begun."""
    left = nth

    def die(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the real one
            nonlocal left
            left -= 1
            if left == 0:
                if half and name in {"write", "pwrite"}:
                    file, data, *at = args
                    real(file, data[: min(100, len(data) // 2)], *at)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, die(getattr(os, name), name))
    fcntl.flock = die(fcntl.flock, "flock")


def survived(before: Act, act: Act, nth: int, *, half: bool) -> bool:
    """Let a child die there, see what it left; whether it did not get so far."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        folder = Path(place)
        client = ResourceClient(folder)
        fence, holder = before(ResourceClient(folder, sync=False), folder)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            tell = os.write
            deadly(nth, half=half)
            more, held = act(client, folder)
            tell(writing, f"{max(fence, more)} {held or ''}".encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        output = os.read(reading, 1000).decode()
        os.close(reading)
        dead = os.WIFSIGNALED(status)
        assert dead or status == 0, f"exit {status}"
        if output:
            fence, holder = int(output.split(" ")[0]), output.split(" ")[1]
        check(folder, fence, holder if output else None)
        return not dead


def check(folder: Path, fence: int, holder: str | None) -> None:
    """Nobody is blocked, no fence comes again, nothing is left lying about."""
    client = ResourceClient(folder, sync=False)
    if (folder / "order,42.doorman").exists():
        client.clock.back = 86_400  # a fence is higher because the last one is known
    if holder:
        assert not client.take("early"), f"{holder} got a reply that it holds"
    if holder != "theirs":
        seat = client.look().seat
        if seat is not None and seat.ticket == "theirs":
            (folder / "order,42.lock").unlink()  # it was not broken yet
    client.clock.by += LEASE / 1e6 + 1
    after = client.take("next")
    assert after > fence, f"{after} after {fence}"
    assert (folder / "order,42.lock").read_text() == "next\n"
    client.give("next")
    assert not (folder / "order,42.lock").exists()
    client.clock.back = -7200
    client.connection.forget(3600)
    left = {path.name for path in folder.iterdir()} - {".rwlock", ".changes", ".boot"}
    assert not left, left


def main() -> None:
    """All scenarios."""
    for name, (before, act) in SCENARIOS.items():
        nth = 1
        while not survived(before, act, nth, half=False):
            assert not survived(before, act, nth, half=True)
            nth += 1
        print(f"{name}: {nth}", flush=True)  # noqa: T201 - how it tells


if __name__ == "__main__":
    main()
