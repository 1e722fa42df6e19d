"""What goes to the log is readable for people and for programs."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import anyio
import pytest

import aiorwlock_remote
from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.logs import log_event

log = logging.getLogger("aiorwlock_remote.tests")


def test_fields_stand_in_the_text_and_in_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_event(log, "lost", resource="order/42", why="forced", fence=7)
    (record,) = caplog.records
    assert record.message == "lost resource=order/42 why=forced fence=7"
    assert (record.levelno, record.__dict__["fence"]) == (logging.WARNING, 7)
    assert record.funcName == "test_fields_stand_in_the_text_and_in_the_record"


def test_records_of_an_event_have_one_template(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for resource in ("order/1", "order/2"):
        log_event(log, "lost", resource=resource)
    assert {record.msg for record in caplog.records} == {"lost resource=%(resource)s"}


def test_others_texts_forge_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons are written by whoever reaches the store."""
    log_event(log, "forced", reason="100 %s\n2026-11-23 all is well")
    (record,) = caplog.records
    assert record.message == "forced reason=100 %s?2026-11-23 all is well"
    assert record.__dict__["reason"] == "100 %s\n2026-11-23 all is well"


@pytest.mark.anyio
@pytest.mark.usefixtures("renewed_often")
async def test_a_loss_says_which_lock_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async with connect("memory://") as locks:
        with pytest.raises(LockLost):
            async with locks.mutex("order", 42):
                seen = await locks.mutex("order", 42).info()
                await locks.force_release(seen, reason="test")
                await anyio.sleep_forever()
    assert any(
        text.startswith("lost resource=order/42 why=forced") for text in caplog.messages
    )


def test_nothing_is_logged_but_by_log_event() -> None:
    """Handlers are the user's: what they raise must end in one place."""
    direct = re.compile(r"\blog\.(debug|info|warning|error|exception|critical|log)\(")
    package = Path(aiorwlock_remote.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if direct.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"logs.py"}
