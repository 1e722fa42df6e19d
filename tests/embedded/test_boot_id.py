"""What follows from the id of a boot, and what does not if it is unknown."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError
from aiorwlock_remote.core.doorman import Doorman, Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId, as_of_boot, this_boot

HELD = Doorman(last=7, grants=(Grant("t", Mode.WRITE, 7, 100, None),), updated=1)
HERE, SHIFTED = "monotonic 0 0 boottime 0 0", "monotonic 0 0 boottime 9 0"


@pytest.fixture(autouse=True)
def nothing_read_yet() -> Iterator[None]:
    boot_id._boot_id.cache_clear()
    yield
    boot_id._boot_id.cache_clear()


@pytest.mark.parametrize(
    ("written", "boot", "now", "counts"),
    [
        ("a", "a", 200, True),
        ("a", "b", 200, False),
        ("a", "a", 50, True),  # an id that is the same needs no other proof
        ("a", "", 200, True),
        ("", "a", 200, True),
        ("", "", 200, True),
        ("a", "", 50, False),
        ("", "a", 50, False),
        ("", "", 50, False),
    ],
)
def test_grants_of_another_boot(
    written: str, boot: str, now: int, counts: bool
) -> None:
    """They end if that is certain, by the id or by a clock that began anew."""
    record = as_of_boot(HELD, written, boot, now)
    assert record.last == 7
    assert bool(record.grants) is counts


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_an_id_that_cannot_be_read_is_not_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is read again next time; once read it is kept."""

    def failing(*_: object) -> NoReturn:
        raise OSError(number, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", failing)
        with pytest.raises(BackendUnavailable) as caught:
            this_boot()
    assert caught.value.nothing_done
    known = this_boot()
    monkeypatch.setattr(boot_id, "_BOOT_ID", Path("/nowhere"))
    assert this_boot() == known


def test_whom_the_host_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of a sandbox may forbid it: nothing that comes and goes."""

    def forbidden(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", forbidden)
        patch.setattr(Path, "readlink", forbidden)
        assert this_boot() == BootId("", "")


def test_a_host_that_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(boot_id, "_BOOT_ID", tmp_path / "proc" / "boot_id")
    monkeypatch.setattr(boot_id, "_SELF", tmp_path / "proc" / "self")
    assert this_boot() == BootId()


@pytest.mark.parametrize("same", [True, False])
def test_the_shift_of_a_time_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, same: bool
) -> None:
    """The offsets that the system tells are those of the namespace of children."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/time").symlink_to("time:[1]")
    (tmp_path / "ns/time_for_children").symlink_to(f"time:[{1 if same else 2}]")
    (tmp_path / "timens_offsets").write_text("monotonic    0   0\nboottime     9   0\n")
    monkeypatch.setattr(boot_id, "_SELF", tmp_path)
    assert this_boot().shift == (SHIFTED if same else "time:[1]")


@pytest.mark.parametrize(
    ("kept", "ours", "then"),
    [
        (None, BootId("a", HERE), BootId("a", HERE)),
        (None, BootId(), BootId()),
        (BootId("a", HERE), BootId("a", HERE), BootId("a", HERE)),
        (BootId("a", HERE), BootId("b", SHIFTED), BootId("b", SHIFTED)),  # booted anew
        (BootId("a", HERE), BootId("a"), BootId("a", HERE)),
        (BootId("", HERE), BootId("a", HERE), BootId("", HERE)),  # those stay welcome
        (BootId(), BootId(), BootId()),
    ],
)
def test_boot_ids_that_may_share_a_store(
    kept: BootId | None, ours: BootId, then: BootId
) -> None:
    assert ours.joining(kept, "x.db") == then


@pytest.mark.parametrize(
    ("kept", "ours", "word"),
    [
        (BootId("a", HERE), BootId(), "/proc"),
        (BootId("a", HERE), BootId("", HERE), "/proc"),
        (BootId("a", HERE), BootId("a", SHIFTED), "time namespace"),
        (BootId("", HERE), BootId("a", SHIFTED), "time namespace"),
    ],
)
def test_boot_ids_that_may_not_share_a_store(
    kept: BootId, ours: BootId, word: str
) -> None:
    with pytest.raises(ConfigurationError, match=word):
        ours.joining(kept, "x.db")
