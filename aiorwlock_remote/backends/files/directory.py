"""``LockDirectory``: checks a directory, locks its files, wakes other processes."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import uniform
from typing import Any, Self

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.backends.files.clocks import (
    BOOT_FILE,
    BootClock,
    FileClock,
    ServerClock,
    read_boot_file,
    write_boot_file,
)
from aiorwlock_remote.backends.files.names import HIDDEN, RECORD, SEAT
from aiorwlock_remote.backends.files.system import (
    kept_locked_error,
    open_plain_file,
    plain_file_length,
    read_small_file,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded import boot_id, mounts
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.embedded.connection import PlainWakeEvent, WakeEvent
from aiorwlock_remote.embedded.inotify import alarm
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

MARK, CHANGES, TEMPORARY = ".rwlock", ".changes", ".new-"
"""Names of the directory's mark and of its notices; how temporary names begin."""
VERSION = 1
_MAX_SMALL_FILE_BYTES = 4096
"""Bytes of the files beside the records; this library's are shorter."""
_RETRY_INTERVAL = 0.0002, 0.002
"""Bounds, in seconds, of the random pause between two tries for a file's lock."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.files")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of a ``file:`` URL."""

    path: str
    # Create the directory if it does not exist.
    create: bool = False
    # Fences survive a power cut.
    sync: bool = True
    # Several hosts use the directory: the file server's clock counts.
    shared: bool = False

    @classmethod
    def of(cls, address: Address) -> Self:
        address.only("create", "shared", "sync")
        elsewhere = address.host not in {"", "localhost"} or address.port is not None
        path = address.path
        if elsewhere or address.username or not path.strip("/") or "\0" in path:
            raise ConfigurationError(
                what="file needs the absolute path of a directory",
                hint="file:///var/lib/locks, three slashes",
            )
        return cls(
            path=str(Path(path)),
            create=address.yes("create", default=False),
            sync=address.yes("sync", default=True),
            shared=address.yes("shared", default=False),
        )


class LockDirectory:
    """A directory of locks, opened by one process. Its calls block; for one thread."""

    def __init__(self, options: FileOptions, clock: Clock, client_id: str = "") -> None:
        """Use the directory that ``options`` name; ``open`` opens it.

        ``clock`` is the local monotonic clock. Changes that are made through this
        object do not wake watchers with the same ``client_id``.
        """
        self._ours = blake2b(client_id.encode(), digest_size=8).digest()
        self.path: str = options.path
        self.sync: bool = options.sync
        self.shared: bool = options.shared
        self._create = options.create
        self._clock = clock
        mark = self.at(MARK)
        self.clock: FileClock = (
            ServerClock(mark) if options.shared else BootClock(clock)
        )
        self._changes: int | None = None

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def new(self) -> str:
        """Return a fresh path for a temporary file in the directory."""
        return self.at(f"{TEMPORARY}{random_id().hex()}")

    def open(self, timeout: float) -> None:
        """Check that the directory is fit for locks; mark an empty one for them.

        Waits ``timeout`` seconds for other processes that open it. Raises
        ``ConfigurationError`` if the directory is missing or used for something else,
        ``BackendError`` if it is locked, damaged or not fit, or an ``OSError``.
        """
        try:
            if self._create:
                with suppress(FileExistsError):
                    Path(self.path).mkdir(parents=True)
            names = os.listdir(self.path)  # noqa: PTH208 - names are what is wanted
        except FileNotFoundError:
            raise ConfigurationError(
                what=f"{self.path} does not exist",
                hint=f"mkdir -p {self.path}, or say create=yes in the URL",
            ) from None
        except NotADirectoryError:
            raise ConfigurationError(
                what=f"{self.path} is not a directory",
                hint="give the locks a directory of their own",
            ) from None
        self._check_rights()
        mounts.check_mount(self.path, mounts.mount_of(self.path), shared=self.shared)
        if MARK not in names:
            self._mark(names)
        self._check_mark()
        if not self.shared:
            self.clock.boot = self._join_boot(self._clock.now() + timeout).id
        self.clock.check()
        self.close()
        changes = self.at(CHANGES)
        self._changes = open_plain_file(changes, os.O_RDWR | os.O_CREAT)
        plain_file_length(self._changes, _MAX_SMALL_FILE_BYTES, changes)
        log_event(log, "connection_opened", logging.DEBUG, path=self.path)

    def close(self) -> None:
        changes, self._changes = self._changes, None
        if changes is not None:
            os.close(changes)

    @contextmanager
    def locked(self, path: str, flags: int, until: float = 0.0) -> Iterator[int]:
        """Open and lock a file, yield its descriptor, then unlock and close the file.

        ``flags`` are those of ``os.open``. The lock is exclusive with ``os.O_RDWR``,
        otherwise shared with other readers. The kernel ends the lock with the process.
        Raises ``KeptLocked`` if another process still has the lock when the local
        monotonic clock shows ``until``, ``BadRecord`` for a symbolic link, or
        ``OSError``.
        """
        how = fcntl.LOCK_EX if flags & os.O_RDWR else fcntl.LOCK_SH
        while True:
            file = open_plain_file(path, flags)
            try:
                self._lock(file, path, how, until)
                # Another process may have replaced or removed the file between the two
                # calls: its lock would protect nothing then (test_purge.py:
                # test_while_others_take_and_give).
                if _still_named(file, path):
                    yield file
                    return
            finally:
                unlock(file)

    def flush(self, file: int) -> None:
        """Sync the file with this descriptor, unless the URL says ``sync=no``."""
        if self.sync:
            getattr(os, "fdatasync", os.fsync)(file)  # macOS has no fdatasync

    def flush_shared(self, file: int) -> None:
        """Sync the file with this descriptor if several hosts use the directory."""
        # On one host the boot id shows what was written before a power cut.
        if self.shared:
            self.flush(file)

    def flush_names(self) -> None:
        """Sync the directory, which holds the files' names, unless ``sync=no``."""
        if not self.sync:
            return
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def wake(self) -> None:
        """Notify the watchers of all processes that some lock has changed."""
        if self._changes is not None:
            os.pwrite(self._changes, self._ours + random_id()[:8], 0)

    def alarm(self) -> WakeEvent:
        return PlainWakeEvent() if self.shared else alarm(self.at(CHANGES), self._ours)

    def version(self) -> object:
        if self._changes is None:
            raise BackendUnavailable(what=f"{self.path} is not open")
        if self.shared:
            # A network file system shows what other hosts wrote when a file is opened.
            file = open_plain_file(self.at(CHANGES), os.O_RDONLY)
            try:
                notice = os.pread(file, 16, 0)
            finally:
                os.close(file)
        else:
            notice = os.pread(self._changes, 16, 0)
        return notice, os.stat(self.path).st_mtime_ns  # noqa: PTH116

    def _lock(self, file: int, path: str, how: int, until: float) -> None:
        while True:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.now() >= until:
                    raise kept_locked_error(path) from None
                time.sleep(uniform(*_RETRY_INTERVAL))
            else:
                return

    def _check_rights(self) -> None:
        effective = os.access in os.supports_effective_ids
        if os.access(self.path, os.W_OK | os.X_OK, effective_ids=effective):
            return
        read_only = os.statvfs(self.path).f_flag & os.ST_RDONLY
        why = errno.EROFS if read_only else errno.EACCES
        raise OSError(why, os.strerror(why))

    def _mark(self, names: list[str]) -> None:
        others = [n for n in names if not n.endswith(SEAT) and n[:1] != HIDDEN]
        if others and all(name.endswith(RECORD) for name in others):
            # Without the mark it is not known by which clock the records count
            # (test_directory.py: test_its_mark_was_removed).
            raise BadRecord(
                what=f"{self.path} has records, but its {MARK} does not exist",
                hint="does something sweep it, as it does /tmp? stop all that use it, "
                f"and remove *{RECORD}",
            )
        if others:
            raise ConfigurationError(
                what=f"{self.path} holds other files ({quoted(min(others))}, …)",
                hint="give the locks a directory of their own",
            )
        new = self.new()
        mark = {"v": VERSION, "clock": self.clock.kind}
        with Path(new).open("w", encoding="utf-8") as file:
            file.write(json.dumps(mark) + "\n")
            file.flush()
            self.flush(file.fileno())
        try:
            with suppress(FileExistsError):  # another process was faster
                os.link(new, self.at(MARK))
        finally:
            Path(new).unlink()
        self.flush_names()

    def _join_boot(self, until: float) -> BootId:
        boot = boot_id.this_boot()
        path = self.at(BOOT_FILE)
        # BadRecord: another process may be writing the file. With the lock below a
        # damaged file is an error.
        with suppress(FileNotFoundError, BadRecord):
            kept = read_boot_file(path)
            if kept is not None and boot.joining(kept, self.path) == kept:
                return boot
        with self.locked(path, os.O_RDWR | os.O_CREAT, until) as file:
            write_boot_file(file, boot.joining(read_boot_file(path), self.path))
        return boot

    def _check_mark(self) -> None:
        try:
            mark: Any = json.loads(
                read_small_file(self.at(MARK), _MAX_SMALL_FILE_BYTES)
            )
            version, clock = mark["v"], mark["clock"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadRecord(
                what=f"{self.at(MARK)} is damaged, or another program's",
                hint="remove it while no process uses the directory",
            ) from None
        if version != VERSION:
            raise BadRecord(
                what=f"{self.path} is of an unknown version",
                hint="upgrade aiorwlock-remote in every process that uses it",
            )
        if clock != self.clock.kind:
            first = "with" if clock != BootClock.kind else "without"
            raise ConfigurationError(
                what=f"{self.path} was first used {first} shared=yes",
                hint="all programs must say the same; to change it, stop them all "
                f"and remove {MARK}",
            )


def unlock(file: int) -> None:
    """Unlock and close an open file."""
    try:
        # Closing alone does not unlock it: a forked child may have the file open too.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _still_named(file: int, path: str) -> bool:
    mine = os.fstat(file)
    try:
        there = os.lstat(path)
    except OSError as exc:
        if exc.errno not in {errno.ENOENT, errno.ESTALE}:
            raise
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
