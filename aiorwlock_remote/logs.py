"""What goes to the log: an event, and its fields."""

from __future__ import annotations

import logging

from aiorwlock_remote.core.shown import MAX_REASON, one_line


def log_event(
    log: logging.Logger,
    event: str,
    level: int = logging.WARNING,
    *,
    exc_info: BaseException | None = None,
    **fields: object,
) -> None:
    """One record, whose text is ``event field=value …``, on one line.

    The fields are attributes of the record as well, as they are. All records of an
    event have the same ``msg``, by which tools put them together.
    """
    template = " ".join((event, *(f"{name}=%({name})s" for name in fields)))
    shown = {name: one_line(str(value), MAX_REASON) for name, value in fields.items()}
    log.log(level, template, shown, exc_info=exc_info, extra=fields, stacklevel=2)
