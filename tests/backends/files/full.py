"""On a small disk that gets full: ``python -m tests.backends.files.full DIR real``.

Or on one that only pretends to have no space for new files.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.core.names import resource
from tests.backends.files.one_resource import ResourceClient


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Nothing more fits."""
    with (folder / ".ballast").open("wb", buffering=0) as ballast:
        with suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        yield
        ballast.truncate(0)


@contextmanager
def pretended() -> Iterator[None]:
    """The system says so of every file that is not there yet."""
    really = os.open

    def pretend(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(path, flags, mode)

    setattr(os, "open", pretend)  # noqa: B010 - mypy does not like the other way
    yield
    setattr(os, "open", really)  # noqa: B010


def main(folder: Path, how: str) -> None:
    client, other = ResourceClient(folder), resource("other", 1)
    first = client.take("first")
    with full(folder) if how == "real" else pretended():
        with pytest.raises(BackendUnavailable, match="no space is left") as caught:
            client.take("more", of=other)
        assert caught.value.nothing_done
        client.give("first")  # whose record has its place on the disk
    assert client.take("second") > first
    assert client.take("more", of=other)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
