"""A worker whose store loses, delays, doubles and forges the messages of grants.

``python -m tests.faults.messy_worker URL DIR NAME PLAN`` is ``tests.faults.worker`` on
such a store. On SIGTERM it leaves, and writes to ``DIR/NAME.faults`` how often each
fault was injected and how often a waiter entered by a message.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.core.commands import Acquire, Command
from aiorwlock_remote.core.pushed import PushedGrant, StoreTime, proof_of
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.testing.conformance.harness import StoreLocation, open_location
from aiorwlock_remote.testing.faults import Fate, FaultyLink, FaultyStore, Tell
from aiorwlock_remote.testing.history import History
from tests.faults.worker import Plan, Worker


class MessyMessages:
    """Backend whose messages of pushed grants are lost, late, doubled and forged, and
    whose confirmations are lost, each in a few of a hundred cases.
    """

    def __init__(self, url: str) -> None:
        self.done: Counter[str] = Counter()
        """How often each fault was injected."""
        self._url = url
        self._link = FaultyLink(fate=self._fate, hear=self._hear)
        self._loop: EventLoop

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        """Open the store of the URL behind the link."""
        self._loop, link = loop, self._link
        heard, location = link.hearing(wake), StoreLocation(self._url)
        inner = await open_location(location, loop, heard, settings)
        return FaultyStore(inner, link, loop, wake)

    def _fate(self, command: Command) -> Fate:
        if not isinstance(command, Acquire) or not command.confirms:
            return Fate.PASS
        kind = random.choices(["", "refused", "lost"], [94, 3, 3])[0]
        if kind:
            self.done[f"confirmations {kind}"] += 1
        return {"refused": Fate.REFUSE, "lost": Fate.LOSE}.get(kind, Fate.PASS)

    def _hear(self, message: PushedGrant | None, tell: Tell) -> None:
        if message is None:
            tell(None)
            return
        kinds = ["", "dropped", "late", "doubled", "forged"]
        kind = random.choices(kinds, [80, 5, 5, 5, 5])[0]
        if kind:
            self.done[f"messages {kind}"] += 1
        window = (message.expires - message.since) / 1e6
        if kind == "late":
            self._later(random.uniform(0.1, 2.5) * window, partial(tell, message))
        elif kind == "forged":
            ends = message.expires + 60_000_000
            forged = replace(message, fence=message.fence + 1, expires=ends)
            tell(random.choice([forged, _signed_with_another_ticket(forged)]))
        elif kind != "dropped":
            tell(message)
        if kind == "doubled":
            self._later(random.uniform(0.0, 2.0) * window, partial(tell, message))

    def _later(self, seconds: float, function: Callable[[], object]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self._loop.spawn(after)


def _signed_with_another_ticket(message: PushedGrant) -> PushedGrant:
    numbers = message.since, message.expires, message.fence
    return replace(message, proof=proof_of("another", *numbers))


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Run the tasks until SIGTERM."""
    store = MessyMessages(url)
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with connect(store) as locks:
            with closing(Worker([locks], history, folder, plan)) as worker:
                async with anyio.create_task_group() as group:
                    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                        print("ready", flush=True)
                        for _ in range(plan.tasks):
                            group.start_soon(worker.task)
                        async for _ in signals:
                            break
                    group.cancel_scope.cancel()
            store.done["entered by a message"] = locks.statistics().wakeups["pushed"]
    (folder / f"{name}.faults").write_text(json.dumps(store.done), "utf-8")


def believe_everything() -> None:
    """Let this process take each message for true: the hammer's control."""
    PushedGrant.proves = lambda *_: True  # type: ignore[method-assign]
    StoreTime.bounds = lambda *_: (1e12, 0.0)  # type: ignore[method-assign]


if __name__ == "__main__":
    given = json.loads(sys.argv[4])
    if given.pop("gullible", False):
        believe_everything()
    plan = Plan(**given)
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
