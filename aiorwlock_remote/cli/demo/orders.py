"""What the demo and its workers tell each other, over stdin and stdout."""

from __future__ import annotations

import json
import select
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast, final

HOLD, GO_ON = b"hold\n", b"go on\n"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker is to do. ``url`` None: without a lock. ``lease`` in seconds."""

    name: str
    folder: str
    ledger: str
    url: str | None
    resource: tuple[str, str]
    lease: float
    loop: str


@final
@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker says when it holds and waits, as ordered.

    ``holder``: as in the history. ``grant``: as the store shows it.
    """

    holder: str
    grant: str
    fence: int


@final
class Orders:
    """What the demo says on stdin."""

    def __init__(self) -> None:
        # Unbuffered: select has to see what has not been read.
        self._stdin = cast("BinaryIO", open(0, "rb", buffering=0, closefd=False))  # noqa: SIM115
        self.hold: bool = False

    def line(self) -> bytes:
        """The next line; waits for it, and blocks the whole process."""
        return self._stdin.readline()

    def go_on(self) -> bool:
        """Whether to take another turn."""
        while select.select([self._stdin], [], [], 0)[0]:
            order = self.line()
            if not order:
                return False
            self.hold = order == HOLD
        return True

    def obey(self, holding: Holding) -> None:
        """Say that we hold; wait until told to go on."""
        self.hold = False
        print(json.dumps(asdict(holding)), flush=True)
        self.line()
