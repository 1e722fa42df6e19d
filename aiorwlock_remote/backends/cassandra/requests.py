"""What the cluster is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiorwlock_remote.backends.cassandra.driver import Statement
from aiorwlock_remote.core.value import replace, value

Row = Mapping[str, Any]
Rows = Sequence[Row]

APPLIED = "[applied]"


@value
class Request:
    """A statement and its values, which may hold a ticket.

    ``node``: whom to ask; None: whom the driver's policy chooses. ``behind``: it has
    time until what was asked before it is answered.
    """

    statement: Statement
    values: Sequence[object] | None
    node: object = None
    behind: bool = False

    def to(self, node: object) -> Request:
        """The same, for that node."""
        return replace(self, node=node)

    def __repr__(self) -> str:
        return f"Request({self.statement.query_string!r})"
