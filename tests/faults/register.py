"""A protected resource that refuses old fences: two numbers in a file, under flock."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_PAIR = struct.Struct("<qq")


class Register:
    """Keeps the highest fence seen and counts the accesses it accepted."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def access(self, fence: int) -> int | None:
        """The serial number of this access; None: the fence is an old one."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            highest: int
            serial: int
            highest, serial = _PAIR.unpack(
                os.pread(self._file, _PAIR.size, 0) or bytes(_PAIR.size)
            )
            if fence < highest:
                return None
            os.pwrite(self._file, _PAIR.pack(fence, serial + 1), 0)
            return serial + 1
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
