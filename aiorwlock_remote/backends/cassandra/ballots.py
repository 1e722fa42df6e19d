"""Reading ballots, of which fences are made: many at a time.

All that are wanted in one turn of the loop are asked for together, so that many locks
that are taken at the same time cost few reads. Each is read at the node that its
transaction went to, which knows it first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from aiorwlock_remote.backends.cassandra.requests import Request, Rows
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Host, Reads

Key = tuple[str, int]
Wanted = dict[Key, Pending[Rows]]

MANY = 32
"""Rows that one request reads."""


SELDOM = 255
"""Grants between two tries of what never worked."""


class Luck:
    """Whether a read right behind a transaction tends to be carried out after it.

    One node that is asked by nobody else does one thing after the other. Where that is
    not so the read is in vain, and tried more and more rarely.
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
        self._pause = 0 if hit else min(2 * self._pause + 1, SELDOM)
        self._left = self._pause


class Ballots:
    """The rows of ``seated``. Belongs to one thread."""

    def __init__(self, table: Table, host: Host) -> None:
        """Nothing is sent yet."""
        self._table = table
        self._host = host
        self._soon = host.at_end if isinstance(host, Reads) else host.call_soon
        self._wanted: dict[object, Wanted] = {}  # by whom to ask
        self._together = True
        self._luck = Luck()

    def early(self, key: Key) -> Pending[Rows] | None:
        """Ask right behind the transaction, if that tends to be late enough.

        ``learn`` is to be told whether it was.
        """
        if not self._luck.tries():
            return None
        return self._table.ask(self._host, self._request(key))

    def learn(self, *, hit: bool) -> None:
        """What came of what was asked early."""
        self._luck.learns(hit=hit)

    def read(self, key: Key, node: object) -> Pending[Rows]:
        """What stands there, from one replica; together with what else is wanted now.

        ``node``: who was asked for the transaction. Fails with ``BackendError``.
        """
        if not self._wanted:
            self._soon(self._ask)
        return self._wanted.setdefault(node, {}).setdefault(key, Pending())

    def _request(self, key: Key) -> Request:
        return self._table.request("seated", *key)

    def _ask(self) -> None:
        asked, self._wanted = self._wanted, {}
        for node, wanted in asked.items():
            if not self._together:
                self._each(wanted)
                continue
            for group in grouped(list(wanted)):
                self._all({key: wanted[key] for key in group}, node)

    def _each(self, wanted: Wanted) -> None:
        for key, pending in wanted.items():
            asked = self._table.ask(self._host, self._request(key))
            asked.then(partial(_told, pending))

    def _all(self, wanted: Wanted, node: object) -> None:
        if len(wanted) == 1:
            self._each(wanted)
            return
        types = sorted({kind for kind, _ in wanted})
        numbers = sorted({number for _, number in wanted})
        request = self._table.request("seated_all", types, numbers).to(node)
        asked = self._table.ask(self._host, request)
        asked.then(partial(self._told_all, wanted))

    def _told_all(self, wanted: Wanted, asked: Pending[Rows]) -> None:
        if isinstance(asked.error, Unsupported):
            self._together = False  # a guardrail of the server, perhaps
            self._each(wanted)
        elif asked.error is not None:
            for pending in wanted.values():
                pending.fail(asked.error)
        else:
            found = {
                (row["resource_type"], row["resource_id"]): row
                for row in asked.result()
            }
            for key, pending in wanted.items():
                pending.resolve([found[key]] if key in found else [])


def grouped(keys: Sequence[Key]) -> Iterable[Sequence[Key]]:
    """Sets that one request names, and nothing else: of one type, or of one number."""
    many = Counter(kind for kind, _ in keys)
    groups: dict[object, list[Key]] = defaultdict(list)
    for key in keys:
        kind, number = key
        groups[kind if many[kind] > 1 else number].append(key)
    for group in groups.values():
        for start in range(0, len(group), MANY):
            yield group[start : start + MANY]


def _told(pending: Pending[Rows], asked: Pending[Rows]) -> None:
    if asked.error is not None:
        pending.fail(asked.error)
    else:
        pending.resolve(asked.result())
