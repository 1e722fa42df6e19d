"""One command of a batch: its outcome, and what a damaged record is told as."""

from __future__ import annotations

from collections.abc import Callable

from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.errors import BadRecord

CACHE_SIZE = 256


def outcome(resource: Resource, carry_out: Callable[[], Step]) -> Step | BadRecord:
    """What it comes to; a record that cannot be used is the trouble of its own users.

    Nothing may be written before it has failed.
    """
    try:
        return carry_out()
    except BadRecord as exc:
        exc.what = f"{resource.label}: {exc.what}"
        exc.nothing_done = True
        return exc
    except (TypeError, ValueError, OverflowError) as exc:
        what = f"the record of {resource.label} cannot be used"
        bad = BadRecord(what=what, nothing_done=True)
        bad.__cause__ = exc
        return bad


class DecodeCache:
    """What was read or written lately, by its text."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._records: dict[str, Doorman] = {}

    def __call__(self, text: str) -> Doorman:
        """The record of a text.

        Raises:
            BadRecord: it is none.
        """
        return self._records.get(text) or self.keep(text, loads(text))

    def keep(self, text: str, record: Doorman) -> Doorman:
        """Remember it."""
        if len(self._records) >= CACHE_SIZE:
            self._records.clear()
        self._records[text] = record
        return record
