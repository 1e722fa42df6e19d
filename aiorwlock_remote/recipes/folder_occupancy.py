"""Who is pending at objects and who uses them, in folders: also on a shared mount.

Each object has a folder in the one that users name, with the folders ``pending`` and
``using`` in it; a record is an empty file. Its name says who: a label, the process and
128 random bits, parted by commas. Making a file and moving it from one folder to the
other are atomic, on a local disk and on NFS.

A file is as old as its time of change, compared with that of the file just made by who
looks: both are the file server's, so it does not matter what the hosts' clocks say. A
file of a process of this host is dead once the process is.

Nothing is forced to the disk: who loses files by a power failure has lost the processes
that made them, and an NFS server tells of nothing that it can lose.

Proof that a process is gone; whatever is no proof counts as life.

A process is named by a *world* (this boot, this namespace of process numbers, this
clock), its number and its start. Only who lives in the same world can prove anything:
in another container the same number is another process, and on another host nobody
knows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.names import decode, encode
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges
from aiorwlock_remote.core.text import check_path
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.recipes.occupancy import Occupancies

_PROC = Path("/proc")
_NAMESPACE_DIGITS = 16
_DEAD_STATES = frozenset("ZX")
# Places in /proc/<pid>/stat, counted behind the program's name.
_STATE, _THREADS, _START = 0, 17, 19


@cache
def _process_proof(pid: int) -> str:
    start = _process_stat(pid)
    world = _process_namespace()
    return f"{world}.{pid}.{start[_START]}" if world and start else ""


def own_process_proof() -> str:
    """What proves, once this process is gone, that it is; "" where nothing can."""
    return _process_proof(os.getpid())


def is_proved_dead(process: str) -> bool:
    """Whether the process of that ``own_process_proof`` is proved to be gone."""
    world, _, rest = process.partition(".")
    number, _, start = rest.partition(".")
    if not world or world != _process_namespace() or not (number.isdecimal() and start):
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
    found = _process_stat(pid)
    if not found:
        return False
    unreaped = found[_STATE] in _DEAD_STATES and int(found[_THREADS]) <= 1
    return unreaped or found[_START] != start


def _process_namespace() -> str:
    parts: list[str] = []
    with suppress(OSError):
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(str((_PROC / "self/ns/pid").readlink()))
        parts.append(str((_PROC / "self/ns/time").readlink()))
    if len(parts) < 2:  # older kernels have no namespaces of clocks
        return ""
    return sha256(" ".join(parts).encode()).hexdigest()[:_NAMESPACE_DIGITS]


def _process_stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


T = TypeVar("T")

PENDING, USING = "pending", "using"
LABEL_BYTES = 96
THREADS = 8
NANOS = 1_000_000_000

# Not those of all programs: whoever waits there may wait for us.
_limiter: RunVar[CapacityLimiter] = RunVar("aiorwlock_remote.folders")

_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
_AWAY = frozenset({errno.ENOENT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT})


def occupancies(
    folder: str | os.PathLike[str],
    *,
    pending_age: float = 10.0,
    using_age: float | None = 600.0,
) -> Occupancies:
    """Objects occupied by files in a folder that is there already; no I/O.

    Seconds: older pending and using records are dead; None: a using one never is,
    unless its process is proved to be. The same in every program that occupies the same
    objects.

    Raises:
        ConfigurationError: a name or an age that cannot be used.
    """
    root = Path(check_path(folder))
    return Occupancies(FolderOccupancyStore(root, ExpiryAges(pending_age, using_age)))


class FolderOccupancyStore:
    """Those in one folder. Each step is done in a thread."""

    confirms: bool = True

    def __init__(self, root: Path, ages: ExpiryAges) -> None:
        """No I/O."""
        self._root = root.absolute()
        self.ages: ExpiryAges = ages

    def check(self, thing: str) -> None:
        """Any object can be held."""

    def sign(self, label: str) -> str:
        """The name of its files: ASCII, which no file system changes."""
        while len(safe := quote(label, safe=" @+-_")) > LABEL_BYTES:
            label = label[:-1]
        if safe.startswith("."):
            safe = f"%2E{safe[1:]}"
        return f"{safe},{own_process_proof()},{random_id().hex()}"

    async def write(self, thing: str, who: str) -> None:
        """Make a file."""
        await self._do(partial(self._write, thing, who))

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The other files there."""
        return await self._do(partial(self._others, thing, who, PENDING))

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The other files there."""
        return await self._do(partial(self._others, thing, who, USING))

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Delete a file that was not changed since."""
        path = self._folder(thing, USING if using else PENDING) / record.who
        await self._do(partial(_delete, path, record.mark))

    async def promote(self, thing: str, who: str) -> bool:
        """Move the file."""
        return await self._do(partial(self._promote, thing, who))

    async def extend(self, thing: str, who: str) -> bool:
        """Let its time of change be now, by the file server's clock."""
        return await self._do(partial(self._touch, thing, who))

    async def remove(self, thing: str, who: str) -> bool:
        """Delete the file from both."""
        return await self._do(partial(self._remove, thing, who))

    async def _do(self, function: Callable[[], T]) -> T:
        try:
            limiter = _limiter.get()
        except LookupError:
            limiter = CapacityLimiter(THREADS)
            _limiter.set(limiter)
        try:
            return await to_thread.run_sync(function, limiter=limiter)
        except OSError as exc:
            raise self._error(exc) from exc

    def _folder(self, thing: str, part: str) -> Path:
        return self._root / encode(thing) / part

    def _write(self, thing: str, who: str) -> None:
        path = self._folder(thing, PENDING) / who
        try:
            _create(path)
        except FileNotFoundError:
            self._make_folders(thing)
            _create(path)

    def _make_folders(self, thing: str) -> None:
        # Never the root: it may be a mount that is not there.
        for folder in (
            self._root / encode(thing),
            self._folder(thing, PENDING),
            self._folder(thing, USING),
        ):
            with suppress(FileExistsError):
                folder.mkdir()

    def _others(self, thing: str, who: str, part: str) -> list[ContenderRecord]:
        now = self._now(thing, who)
        found: list[ContenderRecord] = []
        try:
            names = os.listdir(self._folder(thing, part))  # noqa: PTH208 - only names
        except FileNotFoundError:  # empty folders may be swept away
            self._look_for_root()
            return found
        for name in names:
            if name == who or name.startswith("."):  # .nfs0001, .DS_Store
                continue
            record = _record(self._folder(thing, part) / name, now)
            if record is not None:
                found.append(record)
        return found

    def _now(self, thing: str, who: str) -> int | None:
        for part in (PENDING, USING):
            if who:
                with suppress(FileNotFoundError):
                    return (self._folder(thing, part) / who).stat().st_mtime_ns
        return None

    def _promote(self, thing: str, who: str) -> bool:
        before = self._folder(thing, PENDING) / who
        there = self._folder(thing, USING) / who
        try:
            before.rename(there)
        except FileNotFoundError:
            if there.exists():  # the server had done it, and lost its answer
                return True
            if not before.exists():
                return False
            self._make_folders(thing)
            before.rename(there)
        return True

    def _remove(self, thing: str, who: str) -> bool:
        _delete(self._folder(thing, PENDING) / who)
        deleted = _delete(self._folder(thing, USING) / who)
        if not deleted:
            self._look_for_root()
        return deleted

    def _touch(self, thing: str, who: str) -> bool:
        path = self._folder(thing, USING) / who
        try:
            before = path.lstat().st_mtime_ns
            os.utime(path)
            aged = path.lstat().st_mtime_ns - before
        except FileNotFoundError:
            self._look_for_root()
            return False
        if self.ages.using is not None and aged >= self.ages.using * NANOS:
            # Whoever had found it too old by then goes on to delete it.
            _delete(path)
            return False
        return True

    def _look_for_root(self) -> None:
        """What is not there may be away with all the others."""
        if not self._root.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), str(self._root)
            )

    def _error(self, exc: OSError) -> BackendError:
        what = f"{exc.filename or self._root}: {exc.strerror}"
        if exc.errno in _NOT_ALLOWED:
            hint = f"{self._root} has to be a folder in which we may make others"
            return Unsupported(what=what, hint=hint)
        if exc.errno == errno.ENOENT:
            hint = f"mkdir -p {self._root}, or mount what belongs there"
            return BackendUnavailable(what=what, hint=hint)
        if exc.errno in _AWAY:
            return BackendUnavailable(what=what)
        return BackendError(what=what)


def _create(path: Path) -> None:
    # There already: the server had made it, and lost its answer. Nobody has its name.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _delete(path: Path, mark: int | None = None) -> bool:
    try:
        if mark is not None and path.lstat().st_mtime_ns != mark:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _record(path: Path, now: int | None) -> ContenderRecord | None:
    try:
        found = path.lstat()
    except FileNotFoundError:  # gone since
        return None
    if stat.S_ISDIR(found.st_mode):
        return None
    at = found.st_mtime_ns
    age = 0.0 if now is None else max(0, now - at) / NANOS
    label, process = path.name, ""
    if path.name.count(",") == 2:
        label, process, _ = path.name.split(",")
    return ContenderRecord(path.name, age, is_proved_dead(process), at, decode(label))
