"""The two tables in memory, behind links that take time; the clock is a test's."""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import anyio
import pytest

from aiorwlock_remote._util import purge
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.driver import store
from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.cas.table_cas import StoredRow, Values, micros_of, time_text
from aiorwlock_remote.core.commands import Acquire, Claim, Granted
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.registry import find
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import eventually
from tests.servers.proxy import Proxy

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


# ------- Doormen that nobody uses any more, in a database: what its tests share


Left = Callable[[], list[int]]
"""The numbers of the orders whose rows there are, in order."""


def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step already begins with it, and nobody rests in between."""
    monkeypatch.setattr(store, "PURGE_EVERY", 1)
    monkeypatch.setattr(purge, "choice", min)
    monkeypatch.setattr(purge, "PAUSE_BETWEEN_REQUESTS", 0.001)


async def goes_by_keys(url: str, left: Left, use: Callable[[int], None]) -> None:
    """Portions of three of all there are: the orders 1 to 8, which are old."""
    async with opened(url) as store:
        assert isinstance(await store.step(orders(3)[2], acquire("t")), Granted)
        use(5)
        last = await store.forget(99)
        assert (last, left()) == (("order", 3), [2, 4, 5, 6, 7, 8])
        last = await store.forget(99, ("order", 3))
        assert (last, left()) == (("order", 6), [2, 5, 7, 8])
        last = await store.forget(99, ("order", 6))
        assert (last, left()) == (("order", 8), [2, 5])
        assert await store.forget(99, ("order", 8)) is None
        assert await store.forget(99, ("zebra", 0)) is None
        assert await store.forget(99) == ("order", 5)
        assert left() == [2, 5]


async def forgets_all(url: str, left: Left) -> None:
    """A step begins it; what it had to do before does not matter."""
    async with opened(url) as store:
        assert isinstance(await store.step(orders(1)[0], acquire("t")), Granted)
        await eventually(lambda: left() == [0], "all but the one in use")


# ------------------ Stores as ``connect`` opens them, without the runtime above


ORDER = resource("order", 42)
LEASE = micros(30)


@asynccontextmanager
async def opened(url: str, client_id: str = "") -> AsyncIterator[TableStore]:
    """A store that wakes nobody, closed in time afterwards."""
    settings = StoreSettings(client_id=client_id or secrets.token_hex(8))
    host = current_event_loop()
    address = parse(url)
    store = await find(address.scheme)(address, host, lambda *_: None, settings)
    assert isinstance(store, TableStore)
    try:
        yield store
    finally:
        with anyio.fail_after(30, shield=True):
            await store.aclose()


def acquire(ticket: str, mode: Mode = Mode.WRITE, lease: int | None = LEASE) -> Acquire:
    """One try."""
    return Acquire((Claim(ticket, lease),), mode)


def orders(count: int) -> list[Resource]:
    """So many names."""
    return [resource("order", number) for number in range(count)]


# ------------- Making the tables through a proxy that holds back what was asked


async def is_not_cut_off(make: Callable[[], Awaitable[None]], proxy: Proxy) -> None:
    """Whoever is cancelled waits for the answer, and the one connection is well."""
    await make()
    proxy.hold()
    making = asyncio.ensure_future(make())
    await eventually(lambda: proxy.held > 0, "asked")
    making.cancel()
    done, _ = await asyncio.wait({making}, timeout=0.1)
    assert not done
    proxy.let_go()
    with pytest.raises(asyncio.CancelledError):
        await making
    await make()
    assert proxy.connections == 1
