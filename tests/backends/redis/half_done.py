"""Steps that the server stops at one of their calls, and what every client finds then.

The scripts run on the data of a simulated server. A ``Refusal`` refuses a call of the
script: the n-th, every one from the n-th on, or each with a certain command (the right
for it is missing). A ``Case`` says who holds and waits, and which step is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from aiorwlock_remote.backends.redis.codec import decode_step, encode
from aiorwlock_remote.backends.redis.connection.protocol import Arg, Script
from aiorwlock_remote.backends.redis.errors import from_reply
from aiorwlock_remote.backends.redis.keys import Keys, PairKeys, PermitKeys
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Forced,
    ForceRelease,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource, semaphore
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import Snapshot
from tests.simulation.redis_data import Keyspace, LuaRunner, RedisError

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class Refusal(NamedTuple):
    """Which calls are refused: of ``command``, or the ``first``.

    ``lasting``: and all calls after the first.
    """

    command: bytes = b""
    first: int = 0
    lasting: bool = False

    def covers(self, name: bytes, position: int) -> bool:
        if self.command:
            return name == self.command
        return position == self.first or (self.lasting and position > self.first)

    def __str__(self) -> str:
        if self.command:
            return self.command.decode()
        return f"{self.first}{'...' if self.lasting else ''}"


class StoppingServer:
    """One server without a network, which refuses calls of a script."""

    def __init__(self) -> None:
        self.now = START
        self.refusal: Refusal | None = None
        self.calls: list[bytes] = []
        self.refused: list[bytes] = []
        self.data = Keyspace(self._time, lambda _channel, _payload: 1)

    def ask(self, script: Script, args: Sequence[Arg]) -> Any:  # noqa: ANN401
        """Run a script; return its reply, or the error as it would be raised."""
        self.calls, self.refused = [], []
        self.now += 1
        words = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        count = int(words[0])
        keys, argv = words[1 : 1 + count], words[1 + count :]
        runner = stopping_runner()
        runner.server = self
        found = runner.run(self.data, script.text, keys, argv)
        if isinstance(found, RedisError):
            return from_reply(str(found), "server")
        return found

    def refuses(self, name: bytes) -> bool:
        """Note a call of the script; return whether it is refused."""
        self.calls.append(name)
        refused = self.refusal and self.refusal.covers(name, len(self.calls))
        if refused:
            self.refused.append(name)
        return bool(refused)

    def _time(self) -> int:
        return self.now


class StoppingRunner(LuaRunner):
    """Runs the scripts of all servers, as compiling takes longer than running them."""

    server: StoppingServer

    def _command(self, name: bytes, *args: Any) -> Any:  # noqa: ANN401 - as the base
        if not self.server.refuses(name):
            return super()._command(name, *args)
        text = (
            f"NOPERM User locks has no permissions to run the "
            f"'{name.decode().lower()}' command script: abc, on @user_script:1."
        )
        return self._lua.table_from({b"err": text.encode()})


@cache
def stopping_runner() -> StoppingRunner:
    return StoppingRunner()


class Shop:
    """Commands at one resource of a ``StoppingServer``."""

    def __init__(self, server: StoppingServer, keys: Keys) -> None:
        self.server = server
        self.keys = keys

    def do(self, command: Command, client: str) -> Reply:
        """Carry out a command that must not fail."""
        script, args = encode(self.keys, command, client)
        raw = self.server.ask(script, args)
        if isinstance(raw, Exception):
            text = f"{command}: {type(raw).__name__}: {raw}"
            raise AssertionError(text) from raw  # noqa: TRY004 - somebody is harmed
        reply, _, _ = decode_step(command, raw)
        return reply

    def refuse(
        self, command: Command, client: str, refusal: Refusal
    ) -> Exception | Reply:
        """Carry out a command some of whose calls are refused."""
        script, args = encode(self.keys, command, client)
        self.server.refusal = refusal
        try:
            raw = self.server.ask(script, args)
        finally:
            self.server.refusal = None
        if isinstance(raw, Exception):
            return raw
        reply, _, _ = decode_step(command, raw)
        return reply

    def look(self) -> Snapshot:
        raw = self.server.ask(self.keys.look, self.keys.args)
        if isinstance(raw, Exception):
            raise AssertionError(f"look: {raw}") from raw  # noqa: TRY004 - as in do
        return decode_look(self.keys.resource, raw)


class Case(NamedTuple):
    """A step of the client ``bad`` at a resource where others hold and wait.

    ``others`` hold before and after; ``mine`` is what ``bad`` holds before, ``new`` the
    tickets that the step asks for. A step of ``before`` is a client and its command, or
    a function that does something else to the server.
    """

    name: str
    kind: type[Keys]
    before: tuple[tuple[str, Command] | Callable[[Shop], object], ...]
    command: Command
    others: tuple[str, ...] = ()
    mine: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        return Mode.PERMIT if self.kind is PermitKeys else Mode.WRITE

    def shop(self) -> Shop:
        name = semaphore("s", 1) if self.kind is PermitKeys else resource("r", 1)
        shop = Shop(StoppingServer(), self.kind(name))
        for step in self.before:
            if callable(step):
                step(shop)
            else:
                shop.do(step[1], step[0])
        return shop

    def refusals(self) -> list[Refusal]:
        """Return each call, each from which on all are, and each command."""
        shop = self.shop()
        shop.do(self.command, "bad")
        calls = list(shop.server.calls)
        found = [Refusal(first=n) for n in range(1, len(calls) + 1)]
        found += [Refusal(first=n, lasting=True) for n in range(1, len(calls) + 1)]
        return found + [Refusal(command=name) for name in dict.fromkeys(calls)]


LEASE = 30 * SECOND
READ, WRITE, PERMIT = Mode.READ, Mode.WRITE, Mode.PERMIT


def ask(mode: Mode, *tickets: str, lease: int | None = LEASE, **more: Any) -> Acquire:  # noqa: ANN401
    limit = more.pop("limit", 3)
    claims = tuple(Claim(ticket, lease) for ticket in tickets)
    return Acquire(claims, mode, limit=limit if mode is PERMIT else 0, **more)


def queued(mode: Mode, client: str, *tickets: str, **more: Any) -> tuple[str, Acquire]:  # noqa: ANN401
    return client, ask(mode, *tickets, client_id=client, may_queue=True, **more)


def pass_time(seconds: float) -> Callable[[Shop], object]:
    def passing(shop: Shop) -> None:
        shop.server.now += int(seconds * SECOND)

    return passing


def delete(shop: Shop) -> None:
    """Another program deletes the mutex key."""
    shop.server.data.carry_out(b"DEL", shop.keys.seat)


def seize(shop: Shop) -> None:
    """Another program takes the mutex key."""
    shop.server.data.carry_out(b"SET", shop.keys.seat, b"foreign,1")


def cases(lease: int | None) -> Iterator[Case]:
    yield from lock_cases(Keys, lease)
    yield from lock_cases(PairKeys, lease)
    yield from permit_cases(lease)


def lock_cases(kind: type[Keys], lease: int | None) -> Iterator[Case]:  # noqa: PLR0915 - a table
    good, bad = "good", "bad"
    once = ((good, ask(WRITE, "k")), (good, Release("k")))
    known = (*once, *once)  # then only writers are of interest: plain.lua
    one = (good, ask(READ, "g"))
    two = (one, ("fine", ask(READ, "f")))
    wants = {"lease": lease}

    def case(
        name: str,
        before: Sequence[Any],
        command: Command,
        others: Sequence[str] = (),
        **more: tuple[str, ...],
    ) -> Case:
        return Case(name, kind, tuple(before), command, tuple(others), **more)

    for state, before in (("new", ()), ("once", once), ("known", known)):
        yield case(f"{state}: write", before, ask(WRITE, "x", **wants), new=("x",))
        yield case(f"{state}: read", before, ask(READ, "x", **wants), new=("x",))
        many = ask(READ, "x", "y", "z", **wants)
        yield case(f"{state}: three read", before, many, new=("x", "y", "z"))
        queues = queued(WRITE, bad, "x", **wants, push=lease is not None)[1]
        yield case(f"{state}: write, queued", before, queues, new=("x",))
    joins = ask(READ, "x", **wants)
    yield case("join a reader", [*known, one], joins, "g", new=("x",))
    yield case("join two readers", [*known, *two], joins, "gf", new=("x",))
    for mode in (READ, WRITE):
        waits = queued(mode, bad, "x", **wants)[1]
        writer = (good, ask(WRITE, "g"))
        held = [*known, writer]
        yield case(f"wait to {mode.name} for a writer", held, waits, "g", new=("x",))
    waits = queued(WRITE, bad, "x", **wants)[1]
    yield case("wait for readers", [*known, *two], waits, "gf", new=("x",))
    came = [*known, (good, ask(WRITE, "k")), (bad, waits), (good, Release("k"))]
    yield case("enter from the queue", came, waits, new=("x",))
    mine = (bad, ask(READ, "m", **wants))
    for name, there, others in (
        ("last", [mine], ""),
        ("not the last", [one, mine], "g"),
    ):
        old = [*known, *there]
        new = ("x",)
        yield case(f"release the {name} reader", old, Release("m"), others, mine=("m",))
        away = Withdraw(bad, READ, ("m",))
        yield case(f"withdraw the {name} reader", old, away, others, mine=("m",))
        adopts = Adopt("m", Claim("x", lease))
        yield case(
            f"adopt the {name} reader", old, adopts, others, mine=("m",), new=new
        )
        renews = Renew((("m", lease),))
        yield case(f"renew the {name} reader", old, renews, others, mine=("m",))
        up = Upgrade("m", Claim("x", lease), bad, may_wait=True)
        yield case(f"upgrade the {name} reader", old, up, others, mine=("m",), new=new)
        forced = ForceRelease(holder_of("m"), START + 10 * SECOND)
        yield case(f"force the {name} reader", old, forced, others, mine=("m",))
    mine = (bad, ask(WRITE, "m", **wants))
    old = [*known, mine]
    yield case("release the writer", old, Release("m"), mine=("m",))
    yield case("withdraw the writer", old, Withdraw(bad, WRITE, ("m",)), mine=("m",))
    yield case("renew the writer", old, Renew((("m", lease),)), mine=("m",))
    claim = Claim("x", lease)
    yield case("adopt the writer", old, Adopt("m", claim), mine=("m",), new=("x",))
    yield case("downgrade", old, Downgrade("m", claim), mine=("m",), new=("x",))
    for mode in (READ, WRITE):
        waiting = [*old, queued(mode, good, "w", push=mode is WRITE)]
        left: list[tuple[str, Command]] = [(f"release to a {mode.name}", Release("m"))]
        left.append((f"downgrade before a {mode.name}", Downgrade("m", claim)))
        for name, command in left:
            yield case(name, waiting, command, mine=("m",), new=("x",))
        then = queued(mode, bad, "x", **wants)[1]
        hand = Release("m", None, (then,))
        yield case(f"hand over to {mode.name}", old, hand, mine=("m",), new=("x",))
        yield case(
            f"hand over, {mode.name} waits", waiting, hand, mine=("m",), new=("x",)
        )
    if lease is not None:
        entry = queued(WRITE, bad, "x", push=True)
        pushed = [*known, (good, ask(WRITE, "k")), entry, (good, Release("k"))]
        confirms = queued(WRITE, bad, "x", confirms=True)[1]
        yield case("confirm a push", pushed, confirms, new=("x",))
        waiting = [*old, queued(WRITE, good, "w", push=True), queued(WRITE, "c", "v")]
        yield case("push past another", waiting, Release("m"), mine=("m",))
    dead = [*known, (good, ask(WRITE, "g", lease=SECOND)), pass_time(2)]
    yield case("after a dead writer", dead, ask(WRITE, "x", **wants), new=("x",))
    dead = [*known, (good, ask(READ, "d", "e", lease=SECOND)), one, pass_time(2)]
    yield case("beside dead readers", dead, joins, "g", new=("x",))
    if kind is Keys:
        taken = [*known, seize]
        yield case("another program's", taken, waits, new=("x",))
        void = [*known, *two, delete]
        yield case("void readers, read", void, joins, new=("x",))
        yield case("void readers, write", void, waits, new=("x",))


def permit_cases(lease: int | None) -> Iterator[Case]:
    good, bad = "good", "bad"
    known = ((good, ask(PERMIT, "k")), (good, Release("k")))
    one = (good, ask(PERMIT, "g"))
    wants = {"lease": lease}

    def case(
        name: str,
        before: Sequence[Any],
        command: Command,
        others: Sequence[str] = (),
        **more: tuple[str, ...],
    ) -> Case:
        return Case(
            f"permits: {name}",
            PermitKeys,
            tuple(before),
            command,
            tuple(others),
            **more,
        )

    takes = ask(PERMIT, "x", **wants)
    three = ask(PERMIT, "x", "y", "z", **wants, client_id=bad, may_queue=True)
    for state, before in (("new", ()), ("known", known)):
        yield case(f"{state}: take", before, takes, new=("x",))
        yield case(f"{state}: take three", before, three, new=("x", "y", "z"))
    yield case("take beside one", [*known, one], takes, "g", new=("x",))
    yield case("take some", [*known, one], three, "g", new=("x", "y", "z"))
    full = [*known, (good, ask(PERMIT, "g", limit=1))]
    waits = queued(PERMIT, bad, "x", **wants, limit=1)[1]
    yield case("wait", full, waits, "g", new=("x",))
    came = [(good, ask(PERMIT, "g", limit=1)), (bad, waits), (good, Release("g"))]
    yield case("enter from the queue", came, waits, new=("x",))
    mine = (bad, ask(PERMIT, "m", **wants))
    for name, held, others in (
        ("last", [mine], ""),
        ("not the last", [one, mine], "g"),
    ):
        old = [*known, *held]
        yield case(f"release the {name}", old, Release("m"), others, mine=("m",))
        away = Withdraw(bad, PERMIT, ("m",))
        yield case(f"withdraw the {name}", old, away, others, mine=("m",))
        renews = Renew((("m", lease),))
        yield case(f"renew the {name}", old, renews, others, mine=("m",))
        adopts = Adopt("m", Claim("x", lease))
        yield case(f"adopt the {name}", old, adopts, others, mine=("m",), new=("x",))
        forced = ForceRelease(holder_of("m"), START + 10 * SECOND)
        yield case(f"force the {name}", old, forced, others, mine=("m",))
        waiting = [*old, queued(PERMIT, good, "w", limit=len(held))]
        yield case(
            f"release the {name} to a waiter",
            waiting,
            Release("m"),
            others,
            mine=("m",),
        )
    dead = [*known, (good, ask(PERMIT, "d", "e", lease=SECOND)), one, pass_time(2)]
    yield case("beside dead ones", dead, takes, "g", new=("x",))
    yield case("another program's", [*known, seize], waits, new=("x",))
    yield case("void", [*known, one, delete], takes, new=("x",))


class Then(NamedTuple):
    """What happens after the refusal, before everybody leaves.

    ``crashed``: the client never withdraws. ``met``: a client that wants the lock alone
    is the first to come.
    """

    crashed: bool
    met: bool


def check(case: Case, refusal: Refusal, then: Then) -> str | None:  # noqa: C901 - one history
    """Return the name of the refused command, None if no call was refused.

    Raises:
        AssertionError: Somebody was harmed.
    """
    shop = case.shop()
    server = shop.server
    before = {grant.ticket: grant for grant in shop.look().record.grants}
    answer = shop.refuse(case.command, "bad", refusal)
    if not server.refused:
        return None
    refused = server.refused[0].decode()
    if isinstance(answer, Exception):
        assert isinstance(answer, Unsupported), repr(answer)
        named = any(
            f"'{name.decode().lower()}'" in str(answer) for name in server.refused
        )
        assert named, f"{answer} does not name {server.refused}"
    snapshot = shop.look()
    there = {grant.ticket: grant for grant in snapshot.record.grants}
    if isinstance(answer, Granted):  # a call that the step can do without
        assert there.keys() >= {grant.ticket for grant in answer.grants}
        assert snapshot.seat is not None, (
            f"no key, though {server.refused} were refused"
        )
    for ticket in case.others:
        assert ticket in there, f"{ticket} is not shown"
        ends = there[ticket].expires or 0
        assert ends >= (before[ticket].expires or 0), f"{ticket} ends earlier"
    alone = ask(case.mode, "n", client_id="new", limit=1)
    if then.met:
        reply = shop.do(alone, "new")
        assert not (case.others and isinstance(reply, Granted)), "two holders"
        shop.do(Withdraw("new", case.mode, ("n",)), "new")
    if not then.crashed:
        tickets = (*case.new, *case.mine)
        for mode in (READ, case.mode):
            shop.do(Withdraw("bad", mode, tickets, upgrader="m"), "bad")
    for ticket in case.others:
        reply = shop.do(Renew(((ticket, LEASE),)), "good")
        assert isinstance(reply, Renewed)
        assert isinstance(reply.outcomes[0], Grant), f"{ticket} is lost: {reply}"
    if then.crashed:
        shop.do(Renew(tuple((ticket, LEASE) for ticket in case.mine or ("m",))), "bad")
    for ticket in case.others:
        reply = shop.do(Release(ticket), "good")
        assert isinstance(reply, Released)
        assert reply.held, f"{ticket} is lost: {reply}"
    shop.do(Withdraw("good", READ, ("w",)), "good")
    shop.do(Withdraw("good", case.mode, ("w",)), "good")
    shop.do(Withdraw("c", case.mode, ("v",)), "c")
    if then.crashed:
        server.now += 2 * LEASE
        _break_grants_without_end(shop, case)
    if seize in case.before:
        shop.do(ForceRelease(seat="foreign,1"), "good")
    reply = shop.do(alone, "new")
    assert isinstance(reply, Granted), f"a newcomer is kept out: {reply}"
    shop.do(Release("n"), "new")
    _nothing_remains(shop)
    return refused


def _break_grants_without_end(shop: Shop, case: Case) -> None:
    """Break what a client that is gone holds for ever."""
    snapshot = shop.look()
    for grant in snapshot.record.grants:
        if grant.expires is None and grant.ticket in (*case.new, *case.mine):
            reply = shop.do(ForceRelease(grant.holder, grant.fence), "good")
            assert reply == Forced(done=True), "what it holds cannot be broken"


def _nothing_remains(shop: Shop) -> None:
    snapshot = shop.look()
    assert snapshot.record.grants == ()
    assert snapshot.record.queue == (), snapshot.record.queue
    assert snapshot.seat is None, snapshot.seat
    assert snapshot.guests == ()
    values, published = shop.server.data.values, shop.keys.published
    assert not values.keys() & set(published), values
    _, state, holders, *_ = (key for key in shop.keys.args if isinstance(key, bytes))
    assert holders not in values, values[holders]
    fields = [f for f in values[state] if f.startswith((b"reader:", b"permit:"))]
    assert not fields, fields
    endless = values.keys() - shop.server.data.expires.keys()
    assert not endless, f"{endless} never end"
