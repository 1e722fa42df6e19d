"""What a worker is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True)
class Job:
    """``kind`` names the module in ``jobs``; each looks at what concerns it.

    ``family``: the package whose ``adapters`` know the peer. ``key``: where it says
    ``{task}`` each task has one of its own.
    """

    kind: str
    family: str
    peer: str
    loop: str
    url: str
    seed: int
    lease: float = 30.0
    core: int | None = None
    key: str = "key"
    mode: str = "mutex"
    tasks: int = 1
    cycles: int = 1
    reads: float | None = None
    writers: int | None = None
    section: float = 0.0
    seconds: float = 0.0


class Details(TypedDict, total=False):
    """What differs from the defaults of ``Job``."""

    lease: float
    core: int | None
    key: str
    mode: str
    tasks: int
    cycles: int
    reads: float
    writers: int
    section: float
    seconds: float
