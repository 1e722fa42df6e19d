"""Reading ballots, of which fences are made: many at a time.

All that are wanted in one turn of the loop are asked for together, so that many locks
that are taken at the same time cost few reads. Each is read at the node that its
transaction went to, which knows it first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra.requests import Row, Rows
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import EventLoop, SocketEventLoop

Key = tuple[str, int]
Ballot = int | None


class BallotRequest(NamedTuple):
    """The ballot of that version of a row; None: it does not stand there as a whole."""

    key: Key
    version: UUID
    ballot: Pending[Ballot]


ROWS_PER_READ = 32
"""Rows that one request reads."""


TIMES = {
    "ticket": "seated",
    "acquired_at": "dated",
    "version": "versioned",
    "record": "recorded",
    "frame": "framed",
}
"""The cells of a row of ours, and what ``seated`` calls the times of their writes."""

GRANTS_BETWEEN_TRIES = 255
"""Grants between two tries of what never worked."""


class EarlyReadHeuristic:
    """Whether a read right behind a transaction tends to be carried out after it.

    It leaves when that one's answer has come, unless others ask in the meantime, and
    then it is early. So it is in one process that is alone with one node; where it is
    in vain it is tried more and more rarely.
    """

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    def tries(self) -> bool:
        """Whether to try it now."""
        self._left -= 1
        return self._left < 0

    def learns(self, *, hit: bool) -> None:
        """What came out."""
        self._pause = 0 if hit else min(2 * self._pause + 1, GRANTS_BETWEEN_TRIES)
        self._left = self._pause


class Ballots:
    """The rows of ``seated``. Belongs to one thread."""

    def __init__(self, table: Table, host: EventLoop) -> None:
        """Nothing is sent yet."""
        self._table = table
        self._host = host
        self._soon = (
            host.at_end if isinstance(host, SocketEventLoop) else host.call_soon
        )
        self._wanted: dict[object, list[BallotRequest]] = {}  # by whom to ask
        self._together = True
        self._luck = EarlyReadHeuristic()

    def early(self, key: Key, version: UUID) -> Pending[Ballot] | None:
        """Ask right behind the transaction, if that tends to be late enough.

        ``learn`` is to be told whether it was.
        """
        if not self._luck.tries():
            return None
        wanted = BallotRequest(key, version, Pending())
        self._one(wanted, behind=True)
        return wanted.ballot

    def learn(self, *, hit: bool) -> None:
        """What came of what was asked early."""
        self._luck.learns(hit=hit)

    def read(self, key: Key, version: UUID, node: object) -> Pending[Ballot]:
        """What one replica says; it is asked for all that is wanted in this turn.

        None: that version is unheard of there, or does not stand any more, or another
        program's write hides a part of it. ``node``: who was asked for the transaction.
        Fails with ``BackendError``.
        """
        if not self._wanted:
            self._soon(self._ask)
        wanted = BallotRequest(key, version, Pending())
        self._wanted.setdefault(node, []).append(wanted)
        return wanted.ballot

    def _ask(self) -> None:
        asked, self._wanted = self._wanted, {}
        for node, wanted in asked.items():
            if self._together:
                for group in grouped(wanted):
                    self._all(group, node)
            else:
                self._each(wanted)

    def _each(self, wanted: Sequence[BallotRequest]) -> None:
        for one in wanted:
            self._one(one)

    def _one(self, wanted: BallotRequest, *, behind: bool = False) -> None:
        request = self._table.request("seated", *wanted.key)
        request = replace(request, behind=behind) if behind else request
        self._table.ask(self._host, request).add_done_callback(
            partial(_told, (wanted,))
        )

    def _all(self, wanted: Sequence[BallotRequest], node: object) -> None:
        if len(wanted) == 1:
            self._each(wanted)
            return
        types = sorted({one.key[0] for one in wanted})
        numbers = sorted({one.key[1] for one in wanted})
        request = self._table.request("seated_all", types, numbers).to(node)
        self._table.ask(self._host, request).add_done_callback(
            partial(self._told_all, wanted)
        )

    def _told_all(self, wanted: Sequence[BallotRequest], asked: Pending[Rows]) -> None:
        if isinstance(asked.error, Unsupported):
            self._together = False  # a guardrail of the server, perhaps
            self._each(wanted)
        else:
            _told(wanted, asked)


def grouped(wanted: Sequence[BallotRequest]) -> Iterable[Sequence[BallotRequest]]:
    """Sets that one request names, and nothing else: of one type, or of one number."""
    many = Counter(one.key[0] for one in wanted)
    groups: dict[object, list[BallotRequest]] = defaultdict(list)
    for one in wanted:
        kind, number = one.key
        groups[kind if many[kind] > 1 else number].append(one)
    for group in groups.values():
        for start in range(0, len(group), ROWS_PER_READ):
            yield group[start : start + ROWS_PER_READ]


def whole(row: Row) -> Ballot:
    """The ballot that wrote all cells of the row; None: not one wrote them all."""
    ballot: Ballot = row["seated"]
    same = all(row[time] == ballot for time in TIMES.values())
    return ballot if same else None


def _told(wanted: Sequence[BallotRequest], asked: Pending[Rows]) -> None:
    if asked.error is not None:
        for one in wanted:
            one.ballot.set_exception(asked.error)
        return
    ballots = {row["version"]: whole(row) for row in asked.result()}
    for one in wanted:
        one.ballot.set_result(ballots.get(one.version))
