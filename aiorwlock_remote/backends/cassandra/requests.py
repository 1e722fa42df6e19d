"""What the cluster is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.backends.cassandra.driver import Statement

Row = Mapping[str, Any]
Rows = Sequence[Row]

APPLIED = "[applied]"


@dataclass(frozen=True, slots=True)
class Request:
    """A statement and its values, which may hold a ticket."""

    statement: Statement
    values: Sequence[object] | None

    def __repr__(self) -> str:
        return f"Request({self.statement.query_string!r})"


Then = Callable[[Sequence[Rows]], Request | None]
"""From the answers so far to what is to be asked after them."""
