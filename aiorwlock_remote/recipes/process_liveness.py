"""Proof that a process is gone; whatever is no proof counts as life.

A process is named by a *world* (this boot, this namespace of process numbers, this
clock), its number and its start. Only who lives in the same world can prove anything:
in another container the same number is another process, and on another host nobody
knows.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

_PROC = Path("/proc")
_WORLD_DIGITS = 16
_DEAD = frozenset("ZX")
# Places in /proc/<pid>/stat, counted behind the program's name.
_STATE, _THREADS, _START = 0, 17, 19


@cache
def _myself(pid: int) -> str:
    start = _stat(pid)
    world = _world()
    return f"{world}.{pid}.{start[_START]}" if world and start else ""


def own_process_proof() -> str:
    """What proves, once this process is gone, that it is; "" where nothing can."""
    return _myself(os.getpid())


def is_proved_dead(process: str) -> bool:
    """Whether the process of that ``own_process_proof`` is proved to be gone."""
    world, _, rest = process.partition(".")
    number, _, start = rest.partition(".")
    if not world or world != _world() or not (number.isdecimal() and start):
        return False
    pid = int(number)
    try:
        # Not /proc, where others' processes may be hidden. 0 would be our own group.
        if pid > 0:
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    found = _stat(pid)
    if not found:
        return False
    unreaped = found[_STATE] in _DEAD and int(found[_THREADS]) <= 1
    return unreaped or found[_START] != start


def _world() -> str:
    parts: list[str] = []
    with suppress(OSError):
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(str((_PROC / "self/ns/pid").readlink()))
        parts.append(str((_PROC / "self/ns/time").readlink()))
    if len(parts) < 2:  # older kernels have no namespaces of clocks
        return ""
    return sha256(" ".join(parts).encode()).hexdigest()[:_WORLD_DIGITS]


def _stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
