"""Objects occupied by files in a folder, also on a mount that several hosts share.

Each object has a folder in the user's folder, which contains the folders ``pending``
and ``using``: an empty file in ``pending`` says that a process wants the object, one in
``using`` that a process uses it. The file's name is a label, the process and 128 random
bits, separated by commas. Creating a file and renaming it from one folder to the other
are atomic on a local disk and on NFS.

A file's age is its time of change compared with that of the file that the reader has
just created: both are times of the file server, so the hosts' clocks do not matter. The
file of a process of this host counts as dead as soon as the process has ended.

No file is synchronized to the disk: a power failure that loses files ends the processes
that created them, and an NFS server confirms only what it cannot lose.
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

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote._util.threads import run_in_thread
from aiorwlock_remote.core.names import decode, encode
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges
from aiorwlock_remote.core.text import check_path
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.recipes.occupancy import Occupancy

T = TypeVar("T")

PENDING, USING = "pending", "using"
MAX_LABEL_BYTES = 96
MAX_THREADS = 8
NANOSECONDS = 1_000_000_000
"""Number of nanoseconds in a second."""

# Not anyio's default limiter: if the program's own threads wait for an object, all of
# them could wait for a thread that gives it back
# (test_threads_of_others_are_not_needed).
_limiter: RunVar[CapacityLimiter] = RunVar("aiorwlock_remote.folders")

_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
_UNAVAILABLE = frozenset({errno.ENOENT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT})


def occupancy(
    folder: str | os.PathLike[str],
    *,
    pending_age: float = 10.0,
    using_age: float | None = 600.0,
) -> Occupancy:
    """Return an ``Occupancy`` whose records are files in an existing folder; no I/O.

    All programs that occupy the same objects must use the same ages.

    Args:
        folder: The folder; it is never created here.
        pending_age: Seconds after which a record of an attempt counts as dead.
        using_age: Seconds without ``extend`` after which a record of use counts as
            dead; None: never, unless its process is proved to have ended.

    Raises:
        ConfigurationError: an argument is not valid.
    """
    root = Path(check_path(folder))
    return Occupancy(FolderOccupancyStore(root, ExpiryAges(pending_age, using_age)))


class FolderOccupancyStore:
    """Records of who uses which object, as files in ``root``; I/O runs in threads."""

    # A mount may show a folder as it was a moment ago: the last look is repeated after
    # a change of one's own (test_an_old_look_is_found_out).
    confirms: bool = True

    def __init__(self, root: Path, ages: ExpiryAges) -> None:
        self._root = root.absolute()
        self.ages: ExpiryAges = ages

    def check(self, thing: str) -> None:
        """Accept every object: ``encode`` turns any name into a file name."""

    def sign(self, label: str) -> str:
        # ASCII only: some file systems normalize other characters, and the file would
        # not be found under its own name.
        while len(safe := quote(label, safe=" @+-_")) > MAX_LABEL_BYTES:
            label = label[:-1]
        if safe.startswith("."):
            safe = f"%2E{safe[1:]}"
        return f"{safe},{own_process_proof()},{random_id().hex()}"

    async def write(self, thing: str, who: str) -> None:
        await self._run(partial(self._write, thing, who))

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._run(partial(self._others, thing, who, PENDING))

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._run(partial(self._others, thing, who, USING))

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        path = self._folder(thing, USING if using else PENDING) / record.who
        await self._run(partial(_delete, path, record.mark))

    async def promote(self, thing: str, who: str) -> bool:
        return await self._run(partial(self._promote, thing, who))

    async def extend(self, thing: str, who: str) -> bool:
        return await self._run(partial(self._touch, thing, who))

    async def remove(self, thing: str, who: str) -> bool:
        return await self._run(partial(self._remove, thing, who))

    async def _run(self, function: Callable[[], T]) -> T:
        limiter = _limiter.get(None) or CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
        try:
            return await run_in_thread(function, limiter)
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
        # Never the root: if it is a mount that is away, the records would lie beneath
        # the mount point, where no other host sees them
        # (test_a_folder_that_cannot_be_used).
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
        except FileNotFoundError:
            # Administrators may remove empty folders at any time, which must not look
            # like a mount that is away (test_empty_folders_may_be_swept_away). Without
            # its root the store cannot tell (test_a_folder_that_cannot_be_used).
            self._raise_without_root()
            return found
        for name in names:
            if name == who or name.startswith("."):  # .nfs0001, .DS_Store
                continue
            record = _record(self._folder(thing, part) / name, now)
            if record is not None:
                found.append(record)
        return found

    def _now(self, thing: str, who: str) -> int | None:
        # The file server's clock: when the caller's own record was changed.
        for part in (PENDING, USING):
            if who:
                with suppress(FileNotFoundError):
                    return (self._folder(thing, part) / who).stat().st_mtime_ns
        return None

    def _promote(self, thing: str, who: str) -> bool:
        pending = self._folder(thing, PENDING) / who
        using = self._folder(thing, USING) / who
        try:
            pending.rename(using)
        except FileNotFoundError:
            # An NFS client that got no answer repeats the rename, which then fails
            # although the first one was carried out
            # (test_a_move_whose_answer_was_lost_is_found).
            if using.exists():
                return True
            if not pending.exists():
                return False
            self._make_folders(thing)
            pending.rename(using)
        return True

    def _remove(self, thing: str, who: str) -> bool:
        _delete(self._folder(thing, PENDING) / who)
        deleted = _delete(self._folder(thing, USING) / who)
        if not deleted:
            self._raise_without_root()
        return deleted

    def _touch(self, thing: str, who: str) -> bool:
        path = self._folder(thing, USING) / who
        try:
            before = path.lstat().st_mtime_ns
            os.utime(path)
            aged = path.lstat().st_mtime_ns - before
        except FileNotFoundError:
            self._raise_without_root()
            return False
        if self.ages.using is not None and aged >= self.ages.using * NANOSECONDS:
            # Another process may have seen the old time and is about to delete the file
            # (test_what_is_too_old_is_not_extended).
            _delete(path)
            return False
        return True

    def _raise_without_root(self) -> None:
        # If the root is missing, a missing file proves nothing.
        if not self._root.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), str(self._root)
            )

    def _error(self, exc: OSError) -> BackendError:
        what = f"{exc.filename or self._root}: {exc.strerror}"
        if exc.errno in _NOT_ALLOWED:
            hint = f"{self._root} must be a folder in which this user may create others"
            return Unsupported(what=what, hint=hint)
        if exc.errno == errno.ENOENT:
            hint = f"mkdir -p {self._root}, or mount it"
            return BackendUnavailable(what=what, hint=hint)
        if exc.errno in _UNAVAILABLE:
            return BackendUnavailable(what=what)
        return BackendError(what=what)


def _create(path: Path) -> None:
    # A file that exists was created by this call, whose first answer an NFS server
    # lost: its name has 128 random bits.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _delete(path: Path, mark: int | None = None) -> bool:
    # With ``mark`` only if that is still the file's time of change.
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
    except FileNotFoundError:  # deleted since the folder was listed
        return None
    if stat.S_ISDIR(found.st_mode):
        return None
    at = found.st_mtime_ns
    age = 0.0 if now is None else max(0, now - at) / NANOSECONDS
    label, process = path.name, ""
    if path.name.count(",") == 2:
        label, process, _ = path.name.split(",")
    return ContenderRecord(path.name, age, is_proved_dead(process), at, decode(label))


# Which process wrote a file, and the proof that it is gone. A process is named by its
# namespace (this boot, this namespace of process numbers, this clock), its number and
# its start. Only a process of the same namespace can prove anything: in another
# container the same number is another process.

_PROC = Path("/proc")
_NAMESPACE_DIGITS = 16
_DEAD_STATES = frozenset("ZX")
# Fields of /proc/<pid>/stat, counted from behind the program's name.
_STATE, _THREADS, _START = 0, 17, 19


def own_process_proof() -> str:
    """Return an id by which others can prove later that this process has ended.

    Return "" if the system offers no such proof: it needs Linux's ``/proc``.
    """
    return _process_proof(os.getpid())


def is_proved_dead(process: str) -> bool:
    """Return True if a process has certainly ended.

    ``process``: what ``own_process_proof`` returned in that process. False does not
    mean that it lives: it may belong to another host or container, or be hidden from
    this user (test_only_proof_is_proof).
    """
    namespace, _, rest = process.partition(".")
    number, _, start = rest.partition(".")
    if not namespace or namespace != _process_namespace():
        return False
    if not (number.isdecimal() and start):
        return False
    pid = int(number)
    try:
        # A signal, as /proc may be mounted so that it hides the processes of other
        # users. Never to 0, which is the own process group.
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


@cache
def _process_proof(pid: int) -> str:
    # Cached by number, so that a forked child gets a name of its own.
    start = _process_stat(pid)
    namespace = _process_namespace()
    return f"{namespace}.{pid}.{start[_START]}" if namespace and start else ""


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
