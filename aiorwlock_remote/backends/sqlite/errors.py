"""Maps SQLite's errors to this library's."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from types import TracebackType

from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    Unsupported,
)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

_MAX_PATH_BYTES = 500
"""Bytes of a path: SQLite takes 512, and adds ``-journal``."""


def is_busy(exc: sqlite3.Error) -> bool:
    """Return True if the error says that another process has the file locked."""
    return (getattr(exc, "sqlite_errorcode", 0) & 0xFF) in _BUSY


class ErrorMapper:
    """Reusable context manager that raises SQLite's errors as this library's."""

    # A class because each step passes it: ``contextmanager`` would make a generator.

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, sqlite3.Error):
            raise map_error(exc, self._path) from exc


def map_error(
    exc: sqlite3.Error, path: str, *, made: bool = True
) -> BackendError | ConfigurationError:
    """Return this library's error for an error of SQLite, with a hint what to do.

    ``made``: the connection would create the file at ``path`` if the file is missing.
    """
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return BackendUnavailable(
            what=f"{path}: another process keeps the file locked",
            hint="is one stopped, or a tool open in a write transaction?",
            nothing_done=True,
        )
    if code == sqlite3.SQLITE_FULL:
        return BackendUnavailable(
            what=f"{path}: {exc}", hint="make room on the disk", nothing_done=True
        )
    if code in _BROKEN:
        return BadRecord(
            what=f"{path} is not a database of this library ({exc})",
            hint="give the locks a file of their own",
        )
    if code in _UNWRITABLE:
        return Unsupported(
            what=f"{path} cannot be written",
            hint="the file and its folder must be writable by this user",
            nothing_done=True,
        )
    if code == sqlite3.SQLITE_CANTOPEN and _could_be_opened(path, made=made):
        return BackendUnavailable(
            what=f"{path}: {exc}", hint="has the process no descriptors left (ulimit)?"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return ConfigurationError(
            what=f"{path} cannot be opened",
            hint="its folder must exist and be writable by this user",
        )
    if code == sqlite3.SQLITE_ERROR and "no such" in str(exc):
        return Unsupported(
            what=f"{path}: {exc}",
            hint="its tables were changed or dropped",
            nothing_done=True,
        )
    return BackendUnavailable(what=f"{path}: {exc}")


def _could_be_opened(path: str, *, made: bool) -> bool:
    # Finds out without a descriptor whether anything is wrong with the file.
    # Then the process has no descriptors left, which passes: SQLite says the same in
    # both cases (test_sqlite_files.py: test_no_descriptor_is_left,
    # test_no_place_for_a_file).
    folder = Path(path).parent
    try:
        if len(os.fsencode(path)) >= _MAX_PATH_BYTES or not _has_access(
            folder, os.W_OK | os.X_OK
        ):
            return False
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return made and folder.is_dir()
    except OSError:
        return False
    return stat.S_ISREG(mode) and _has_access(Path(path), os.R_OK | os.W_OK)


def _has_access(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)
