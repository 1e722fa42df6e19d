"""``jsonfile:///path``: a complete backend in one module, as an example.

All locks are in one JSON file that is rewritten for each step, under ``flock``. The
file sends no messages, so waiters poll. For real use take ``sqlite://``: it is faster,
wakes waiters, survives a power cut, and detects a boot of the machine.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiorwlock_remote import BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import (
    Address,
    Capability,
    Clock,
    Command,
    Doorman,
    EventLoop,
    Grant,
    MutexRecord,
    NotHeld,
    Pending,
    PollPolicy,
    Renew,
    Renewal,
    Renewed,
    RenewerBase,
    Reply,
    Resource,
    Snapshot,
    Step,
    StoreBase,
    StoreSettings,
    WakeCallback,
    dumps,
    loads,
    micros,
    resource_from_key,
    transition,
)


class File:
    """The file and its atomic steps; all methods block."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def step(self, resource: Resource, command: Command) -> Step:
        """Load the records, apply the command, and store the result, under a lock."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            everything = self._load()
            record, seat = self._read(everything, resource)
            # Read under the lock: an earlier reading could be older than the last
            # step's.
            now, wall = micros(self._clock.now()), micros(self._clock.wall())
            semaphore = resource.is_semaphore
            step = transition(record, seat, command, now, wall, semaphore=semaphore)
            everything[resource.key] = {
                "record": dumps(step.record),
                "seat": step.seat and [step.seat.value, step.seat.expires],
            }
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(everything), "utf-8")
            new.replace(self._path)
            return step

    def look(self, resource: Resource) -> Snapshot:
        """Return the current state of one resource."""
        record, seat = self._read(self._load(), resource)
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        return Snapshot(resource, record or Doorman(), seat, now, wall)

    def scan(self) -> list[Snapshot]:
        """Return the current states of all resources."""
        return [self.look(resource_from_key(name)) for name in sorted(self._load())]

    def _load(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_text("utf-8")))
        except FileNotFoundError:
            return {}

    def _read(
        self, everything: dict[str, Any], resource: Resource
    ) -> tuple[Doorman | None, MutexRecord | None]:
        kept = everything.get(resource.key)
        if kept is None:
            return None, None
        return loads(kept["record"]), kept["seat"] and MutexRecord(*kept["seat"])


class JsonFileStore(StoreBase):
    """The store in the event loop; no method blocks."""

    capabilities = Capability.MANY_PROCESSES | Capability.OFF_LOOP_RENEWAL
    poll_policy = PollPolicy(poll_min=0.02, poll_max=0.04)  # no messages: poll often

    def __init__(
        self, file: File, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> None:
        super().__init__(loop, wake, settings)
        self._file = file
        # One thread, so the steps keep their order.
        self._thread = ThreadPoolExecutor(1)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Send a command; it is carried out even if the caller is cancelled."""
        reply: Pending[Reply] = Pending()

        def answered(step: Step) -> None:
            reply.set_result(step.reply)
            if self.settings.client_id in step.wakes:  # this process is next
                self.wake(resource, 0.0)

        self._in_thread(lambda: self._file.step(resource, command), answered, reply)
        return reply

    async def look(self, resource: Resource) -> Snapshot:
        """Return the current state of a resource."""
        seen: Pending[Snapshot] = Pending()
        self._in_thread(lambda: self._file.look(resource), seen.set_result, seen)
        return await seen

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        """Yield the states of all resources, or of those of one type."""
        found: Pending[list[Snapshot]] = Pending()
        self._in_thread(self._file.scan, found.set_result, found)
        for snapshot in await found:
            if resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> JsonFileRenewer:
        """Return the renewer for the keeper's thread."""
        return JsonFileRenewer(self._file)

    async def aclose(self) -> None:
        """Carry out the commands already sent, and close."""
        done: Pending[None] = Pending()
        self._in_thread(lambda: None, done.set_result, done)
        await done
        self._thread.shutdown()

    def _in_thread(
        self,
        work: Callable[[], Any],
        answered: Callable[[Any], None],
        pending: Pending[Any],
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except OSError as exc:
                lost = BackendUnavailable(what=str(exc))
                self.event_loop.call_soon(pending.set_exception, lost)
            except Exception as exc:  # noqa: BLE001 - raised by ``await pending``
                self.event_loop.call_soon(pending.set_exception, exc)
            else:
                self.event_loop.call_soon(answered, result)

        self._thread.submit(run)


class JsonFileRenewer(RenewerBase):
    """Renewals, which block; called in the keeper's thread."""

    def __init__(self, file: File) -> None:
        # A backend with connections opens one for renewals at the first of them.
        self._file = file

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        """Renew the leases of a batch, in order."""
        del timeout
        outcomes: list[Grant | NotHeld] = []
        for each in batch:
            command = Renew(((each.ticket, each.lease),))
            reply = self._file.step(each.resource, command).reply
            assert isinstance(reply, Renewed)
            outcomes += reply.outcomes
        return outcomes


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> JsonFileStore:
    """Open the store; the package's entry point names this function."""
    address.only()  # no options in the URL
    if not address.path.strip("/"):
        raise ConfigurationError(what="jsonfile needs the path of a file")
    path = Path(address.path.removeprefix("/"))
    store = JsonFileStore(File(path, loop.clock), loop, wake, settings)
    async for _ in store.scan(None):
        """Fail now if the file cannot be read."""
    return store
