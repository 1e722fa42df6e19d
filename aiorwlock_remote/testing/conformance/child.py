"""Child process that obeys a test's orders: ``python -m …conformance.child``.

Orders and replies are lines of JSON on its standard input and output. The first order
gives the store's URL and prefix, and the event loop to run.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aiorwlock_remote import Closed, Held, LockLost, Locks, LockTimeout, connect
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest, lock_of

NAME = "order", 1


class Child:
    """Handle of a child process that runs orders like "acquire" and "release"."""

    def __init__(self, process: Process, patience: float) -> None:
        assert process.stdout is not None
        self._process = process
        self._patience = patience
        self._answers = BufferedByteReceiveStream(process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, order: str, **details: object) -> None:
        """Send an order ("acquire", "fork", …) and arguments; await no reply."""
        assert self._process.stdin is not None
        line = json.dumps({"order": order, **details}) + "\n"
        await self._process.stdin.send(line.encode())

    async def ask(self, order: str, **details: object) -> Any:  # noqa: ANN401 - any JSON
        """Send an order ("acquire", …) with arguments; return its reply (any JSON)."""
        await self.tell(order, **details)
        with anyio.fail_after(self._patience):
            line = await self._answers.receive_until(b"\n", 65_536)
        return json.loads(line)

    def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def child(
    store: StoreUnderTest, backend: tuple[str, dict[str, Any]]
) -> AsyncIterator[Child]:
    """Start a process with a ``Locks`` of this store; kill the process at the end.

    ``backend``: library and options of its event loop, as ``anyio.run`` takes them.
    """
    # A new interpreter, not a fork: as another program it shares nothing with the test
    # but the store.
    command = [sys.executable, "-m", __name__]
    process = await anyio.open_process(command, stderr=None)
    async with process:
        try:
            other = Child(process, store.patience)
            site = {"url": store.site.url, "prefix": store.site.prefix}
            assert await other.ask("open", backend=backend, **site) == "ready"
            yield other
        finally:
            if process.returncode is None:
                process.kill()


# ------------------------------------------------------------- in the process


class _Work:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._held: Held | None = None

    async def acquire(
        self, mode: str, timeout: float | None = None, lease: float = 30
    ) -> object:
        lock = lock_of(self._locks, mode, NAME, lease=lease)
        try:
            self._held = await lock.acquire(timeout)
        except LockTimeout as exc:
            return type(exc).__name__
        return self._held.fence

    async def release(self) -> object:
        assert self._held is not None
        return await self._held.release()

    async def vanish(self) -> object:
        os._exit(3)

    async def count(self, path: str, turns: int) -> object:
        number = anyio.Path(path)
        for _ in range(turns):
            async with self._locks.mutex(*NAME):
                seen = int(await number.read_text())
                await number.write_text(str(seen + 1))
        return turns

    async def fork(self) -> object:
        async with self._locks.mutex(*NAME) as held:
            reading, writing = os.pipe()
            pid = _fork()
            if pid == 0:
                await self._in_the_fork(writing)
            answer = json.loads(_last_words(pid, reading, writing) or "null")
            await held.extend()
            return {"child": answer, "parent": "held" if held.valid else "lost"}

    async def leave_in_a_fork(self, *, raising: bool) -> object:
        reading, writing = os.pipe()
        pid, left, state = -1, "in peace", "held"
        try:
            async with self._locks.mutex(*NAME) as held:
                pid = _fork()
                if pid == 0 and raising:
                    raise _OfTheBody  # noqa: TRY301 - the body has to raise
                if pid != 0:
                    left = _last_words(pid, reading, writing)
                    await held.extend()
        except LockLost as exc:
            state = str(exc.reason)
        except BaseException as exc:
            if pid != 0:
                raise
            left = type(exc).__name__
        finally:
            if pid == 0:
                os.write(writing, left.encode())
                # A normal exit would run the parent's clean-up in the child.
                os._exit(0)
        return {"child": left, "parent": state}

    async def _in_the_fork(self, writing: int) -> None:
        uses: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: self._locks.mutex(*NAME).try_acquire(),
            lambda: self._locks.mutex("order", 2).acquire(),
            lambda: self._locks.mutex(*NAME).info(),
            lambda: self._locks.release_mutex_lock(*NAME, "gluww"),
            self._locks.aclose,
        )
        reasons: set[str] = set()
        try:
            for use in uses:
                try:
                    await use()
                except Closed as exc:
                    reasons.add(exc.reason)
                except BaseException as exc:  # noqa: BLE001 - sent to the parent
                    reasons.add(repr(exc))
                else:
                    reasons.add("done")
            os.write(writing, json.dumps(sorted(reasons)).encode())
        finally:
            os._exit(0)


class _OfTheBody(Exception):
    pass


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads, which is tested
        return os.fork()


def _last_words(pid: int, reading: int, writing: int) -> str:
    # What the forked child has written to the pipe when it ends.
    os.close(writing)
    with os.fdopen(reading) as pipe:
        words = pipe.read()
    os.waitpid(pid, 0)
    return words


async def _serve(url: str, prefix: str) -> None:
    async with connect(url, prefix=prefix) as locks:
        work = _Work(locks)
        _say("ready")
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            details = json.loads(line)
            _say(await getattr(work, details.pop("order"))(**details))


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _main() -> None:
    opening = json.loads(sys.stdin.readline())
    name, options = opening["backend"]
    serve = partial(_serve, opening["url"], opening["prefix"])
    anyio.run(serve, backend=name, backend_options=options)


if __name__ == "__main__":
    _main()
