"""Steps at mutex sets and occupied objects that are stopped; see ``half_done``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiorwlock_remote.backends.redis.connection.protocol import Request
from aiorwlock_remote.backends.redis.recipes import (
    SetKeys,
    encode_ask,
    encode_member,
    encode_release,
    encode_withdraw,
)
from aiorwlock_remote.backends.redis.scripts import OCCUPY, SET_ENTER, VACATE
from aiorwlock_remote.core.commands import Renew
from aiorwlock_remote.core.mutex_set import TakeRequest
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import StoreSettings
from tests.backends.redis.half_done import LEASE, SECOND, Refusal, StoppingServer

SET = SetKeys(StoreSettings("client"), "proxies", "client")
OBJECT = ("pending:a", "using:a", "{pending:a}.since", "{pending:a}.seen")
FOREVER = 24 * 3600 * SECOND


class InterruptedStep(NamedTuple):
    """A step of the client ``bad``, after the steps of ``before``."""

    name: str
    before: tuple[Request | Callable[[StoppingServer], object], ...]
    step: Request

    def server(self) -> StoppingServer:
        server = StoppingServer()
        for step in self.before:
            if callable(step):
                step(server)
            else:
                done(server, step)
        return server

    def refusals(self) -> list[Refusal]:
        server = self.server()
        done(server, self.step)
        calls = list(server.calls)
        found = [Refusal(first=n) for n in range(1, len(calls) + 1)]
        found += [Refusal(first=n, lasting=True) for n in range(1, len(calls) + 1)]
        return found + [Refusal(command=name) for name in dict.fromkeys(calls)]


def done(server: StoppingServer, request: Request) -> Any:  # noqa: ANN401
    """Run a script that must not fail."""
    found = server.ask(*request)
    assert not isinstance(found, Exception), found
    return found


def stopped(
    interrupted: InterruptedStep, refusal: Refusal
) -> tuple[StoppingServer, bool]:
    """Run the step; return the server, and whether any call was refused."""
    server = interrupted.server()
    server.refusal = refusal
    answer = server.ask(*interrupted.step)
    server.refusal = None
    if isinstance(answer, Exception):
        assert isinstance(answer, Unsupported), repr(answer)
    elif server.refused:
        assert set(server.refused) == {b"PUBLISH"}, server.refused
    return server, bool(server.refused)


def asks(ticket: str, target: str = "", life: int = 0) -> Request:
    return encode_ask(SET, b"client.1", [TakeRequest(target, ticket, LEASE)], life)


def creates(name: str) -> Request:
    return SET_ENTER, (*SET.args, "c", LEASE, name)


def waits(server: StoppingServer) -> None:
    """Two other clients wait for a mutex."""
    for pool in (b"other.1", b"third.1"):
        request = encode_ask(SET, pool, [TakeRequest("", "w", LEASE)], 10 * LEASE)
        done(server, request)


def set_scenes() -> Iterator[InterruptedStep]:
    two = (creates("a"), creates("b"), asks("good", "a"))
    mine = (*two, asks("m", "b"))
    yield InterruptedStep("set: create", (asks("x"),), creates("a"))
    yield InterruptedStep("set: take", two, asks("x"))
    yield InterruptedStep("set: take by name", two, asks("x", "b"))
    yield InterruptedStep("set: wait", mine, asks("x", life=LEASE))
    left = (*mine, asks("x", life=LEASE), encode_release(SET, "m", remove=False))
    yield InterruptedStep("set: take from the queue", left, asks("x", life=LEASE))
    yield InterruptedStep("set: release", mine, encode_release(SET, "m", remove=False))
    yield InterruptedStep("set: remove", mine, encode_release(SET, "m", remove=True))
    yield InterruptedStep(
        "set: release, others wait",
        (*mine, waits),
        encode_release(SET, "m", remove=False),
    )
    yield InterruptedStep(
        "set: renew", mine, encode_member(SET, Renew((("m", LEASE),)))
    )
    yield InterruptedStep(
        "set: withdraw", mine, encode_withdraw(SET, [b"client.1,"], ["m"], LEASE)
    )

    def late(server: StoppingServer) -> None:
        server.now += 2 * LEASE
        done(server, asks("good", "a"))

    yield InterruptedStep("set: after a dead holder", (*mine, late), asks("x"))


def check_set(interrupted: InterruptedStep, refusal: Refusal, *, crashed: bool) -> bool:
    """Return whether a call was refused.

    Raises:
        AssertionError: Somebody was harmed.
    """
    server, refused = stopped(interrupted, refusal)
    if not refused:
        return False
    both = encode_member(SET, Renew((("good", LEASE), ("m", LEASE))))
    _, good, mine = done(server, both)
    if interrupted.name != "set: create":
        assert good[0] > 0, f"the good holder lost its mutex: {good}"
        if interrupted.name == "set: renew":
            assert mine[0] > 0, f"a renewal that was refused lost the mutex: {mine}"
    if not crashed:
        done(server, encode_withdraw(SET, [b"client.1,"], ["x", "m"], LEASE))
        done(server, encode_release(SET, "good", remove=False))
    else:
        server.now += 2 * LEASE
    for pool in (b"other.1", b"third.1"):
        done(server, encode_withdraw(SET, [pool + b","], [], LEASE))
    done(server, creates("a"))
    done(server, creates("b"))
    for name in ("a", "b"):
        _, (fence, got) = done(server, asks(f"new-{name}", name))
        assert fence > 0, f"a newcomer is kept out of {name}"
        assert got == name.encode()
    for name in ("a", "b"):
        _, (held,) = done(server, encode_release(SET, f"new-{name}", remove=False))
        assert held == 1
    names, state, queue = (key for key in SET.args[1:4] if isinstance(key, bytes))
    scores = server.data.values[names]
    assert set(scores.values()) == {0.0}, scores
    assert queue not in server.data.values, server.data.values[queue]
    assert state in server.data.expires
    return True


def occupies(kind: str, who: str, lives: object = 30_000, *more: str) -> Request:
    script = VACATE if kind in "drex" else OCCUPY
    return script, (4, *OBJECT, kind, who, str(lives), *more)


def object_scenes() -> Iterator[InterruptedStep]:
    for lives in (30_000, ""):
        note = "" if lives else ", for ever"
        good = (occupies("w", "good", lives),)
        mine = (*good, occupies("w", "m", lives))
        using = (*mine, occupies("m", "m", lives))
        yield InterruptedStep(
            f"object: become pending{note}", good, occupies("w", "m", lives)
        )
        yield InterruptedStep(f"object: use{note}", mine, occupies("m", "m", lives))
        yield InterruptedStep(f"object: extend{note}", using, occupies("e", "m", lives))
        yield InterruptedStep(f"object: leave{note}", using, occupies("r", "m", lives))
        yield InterruptedStep(
            f"object: leave, pending{note}", mine, occupies("r", "m", lives)
        )
        yield InterruptedStep(f"object: look{note}", mine, occupies("p", "good", lives))


def check_object(
    interrupted: InterruptedStep, refusal: Refusal, *, crashed: bool
) -> bool:
    """As ``check_set``."""
    server, refused = stopped(interrupted, refusal)
    if not refused:
        return False
    others = done(server, occupies("p", "m"))
    assert [found[0] for found in others] == [b"good"], others
    if not crashed:
        done(server, occupies("r", "m"))
    else:  # as the others do: drop who is pending for too long, and break who uses it
        server.now += 2 * LEASE
        for found in done(server, occupies("p", "good")):
            done(server, occupies("d", found[0].decode(), "", found[2].decode()))
        user = done(server, occupies("u", "good", ""))
        if user is not None:
            assert user == b"m", user
            assert server.data.expires.get(b"using:a") is None
            done(server, occupies("x", "m"))
    assert done(server, occupies("m", "good")) == 1, "a contender is kept out"
    assert done(server, occupies("r", "good")) == 1
    assert not server.data.values.keys() & {b"pending:a", b"using:a"}
    assert server.data.values.get(b"{pending:a}.since", {}) == {}
    return True
