"""The two tables in memory, behind links that take time; the clock is a test's."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.table_cas import StoredRow, Values, micros_of, time_text
from aiorwlock_remote.core.timing import MICROS

Delay = Callable[[], float]


@dataclass
class VirtualTime:
    """Time, and what is to happen. Seconds."""

    now: float = 1_000.0
    _todo: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _order: Any = field(default_factory=count)

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """It happens then."""
        heapq.heappush(self._todo, (self.now + seconds, next(self._order), what))

    def run(self, until: float) -> None:
        """All that happens until then."""
        while self._todo and self._todo[0][0] <= until:
            self.now, _, what = heapq.heappop(self._todo)
            what()
        self.now = until


@dataclass
class Watch:
    """A process's clock: another origin, and a speed that differs a little."""

    virtual_time: VirtualTime
    origin: float = 0.0
    speed: float = 1.0

    def now(self) -> float:
        """Boot clock."""
        return self.origin + self.virtual_time.now * self.speed

    def wall(self) -> float:
        """Not to be trusted at all."""
        return 5.0 * self.now()


class HasTime(Protocol):
    """A world, as far as the tables need one. ``now``: seconds."""

    now: float


class Tables:
    """What the blocks do, in Python; the server's clock is ``ahead`` of the world's."""

    def __init__(self, virtual_time: HasTime, ahead: float = 1_700_000_000.0) -> None:
        self._world = virtual_time
        self._ahead = ahead
        self.seats: dict[Any, tuple[Any, Any]] = {}
        self.doormen: dict[Any, tuple[str, Any, Any]] = {}
        self.belated: int = 0

    def now(self) -> int:
        """The server's clock, in microseconds."""
        return round((self._world.now + self._ahead) * MICROS)

    def look(self, key: Any) -> StoredRow:  # noqa: ANN401
        """As the block of that name."""
        created, version, record = self.doormen.get(key, (None, None, None))
        ticket, since = self.seats.get(key, (None, None))
        return StoredRow(False, self.now(), created, version, record, ticket, since)

    def swap(self, asked: Values) -> StoredRow:
        """As the block of that name."""
        key = asked["i_kind"], asked["i_number"]
        created, version, _ = self.doormen.setdefault(
            key, (time_text(self.now()), None, None)
        )
        late = self.now() > micros_of(str(asked["i_latest"]))
        self.belated += late
        seat = self.seats.get(key, (None, None))
        given = asked["i_ticket"], asked["i_since"]
        if late or version != asked["i_version"] or seat != given:
            return self.look(key)
        self.seats.pop(key, None)
        if asked["t_ticket"] is not None:
            self.seats[key] = asked["t_ticket"], asked["t_since"]
        fence, text = None, str(asked["n_record"])
        if isinstance(least := asked["n_fence"], int):
            fence = max(least, self.now())
            text = f"{fence}{text}"
        self.doormen[key] = created, asked["n_version"], text
        return StoredRow(done=True, now=self.now(), fence=fence)


class Link:
    """A statement executor: each way takes ``delay()`` seconds."""

    def __init__(self, tables: Tables, virtual_time: VirtualTime, delay: Delay) -> None:
        self._tables = tables
        self._world = virtual_time
        self._delay = delay
        self.carried: Callable[[Values, StoredRow], object] = lambda _, __: None

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """Carried there, and the answer back."""
        pending: Pending[StoredRow] = Pending()

        def arrive() -> None:
            if name == "look":
                found = self._tables.look((values["i_kind"], values["i_number"]))
            else:
                found = self._tables.swap(values)
                self.carried(values, found)
            self._world.after(self._delay(), lambda: pending.set_result(found))

        self._world.after(self._delay(), arrive)
        return pending
