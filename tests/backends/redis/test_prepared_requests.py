"""Requests that are encoded but for their ticket: the same bytes, the same replies."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.codec import decode, encode
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.protocol import Call, Raw, pack
from aiorwlock_remote.backends.redis.keys import Keys, keys_of
from aiorwlock_remote.backends.redis.prepared import PreparedAcquire, PreparedRelease
from aiorwlock_remote.core.commands import Acquire, Claim, Command, Release, Reply
from aiorwlock_remote.core.doorman import Requester
from aiorwlock_remote.core.names import resource, semaphore
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.value import replace
from tests.backends.redis.test_replies import ANSWERS

OWN_ID = "0123abcd"
HEX_TICKETS = st.text("0123456789abcdef", min_size=32, max_size=32)
ODD_TICKETS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
TEXTS = st.text(max_size=20)
WHO = st.builds(Requester, TEXTS, st.integers(0, 2**22), TEXTS, TEXTS)
LEASES = st.integers(1, 10**12)
CLAIMS = st.builds(Claim, HEX_TICKETS, LEASES, WHO)
ODD_CLAIMS = st.one_of(
    st.builds(Claim, HEX_TICKETS, st.none(), WHO),
    st.builds(Claim, HEX_TICKETS, LEASES, WHO, st.integers(1, 10**9)),
    st.builds(Claim, ODD_TICKETS, LEASES, WHO),
)
MUTEX = Acquire((Claim("older", None),), Mode.WRITE, client_id=OWN_ID, may_queue=True)
USUAL = Claim("0" * 32, 5)


@st.composite
def acquires(draw: st.DrawFn) -> Acquire:
    """What one task asks for that is alone there."""
    mode = draw(st.sampled_from([*LOCK_MODES, Mode.PERMIT]))
    return Acquire(
        (Claim("older", None),),
        mode,
        draw(st.sampled_from(Policy)),
        OWN_ID,
        may_queue=True,
        max_waiters=draw(st.none() | st.integers(0, 99)),
        claim_window=draw(st.sampled_from([100_000, 300_000])),
        push=mode is Mode.WRITE and draw(st.booleans()),
        limit=draw(st.integers(1, 9)) if mode is Mode.PERMIT else 0,
    )


class Server:
    """What was sent in the short way, and in the usual one."""

    def __init__(self, mode: Mode, name: str = "1") -> None:
        named = semaphore if mode is Mode.PERMIT else resource
        self.keys: Keys = keys_of("", named("order", name), 3600.0)
        self.packed: list[tuple[Call[Reply], bytes]] = []
        self.usual: list[Command] = []

    def send_packed(self, call: Call[Reply], packed: bytes) -> Call[Reply]:
        self.packed.append((call, packed))
        return call

    def step(self, command: Command) -> Pending[Reply]:
        self.usual.append(command)
        return Pending()

    def prepared_acquire(self, acquire: Acquire) -> PreparedAcquire:
        own: Any = self
        connection = cast("RedisConnection", own)
        given = connection, self.keys, acquire, OWN_ID
        return PreparedAcquire(*given, _decode, self.step)

    def prepared_release(self) -> PreparedRelease:
        own: Any = self
        connection = cast("RedisConnection", own)
        return PreparedRelease(connection, self.keys, OWN_ID, _decode, self.step)

    def check_sent(self, command: Command, *, usually: bool) -> None:
        """It was sent once, in one of the two ways, and as it is sent by itself."""
        if usually:
            assert (self.usual, self.packed) == ([command], [])
            self.usual.clear()
            return
        ((call, packed),) = self.packed
        self.packed.clear()
        assert self.usual == []
        script, args = encode(self.keys, command, OWN_ID)
        assert (call.script, call.args) == (script, args)
        assert packed == pack(("EVALSHA", script.sha, *args))
        assert call.must_go is isinstance(command, Release)


def _decode(command: Command, raw: object) -> Reply:
    answer: Any = raw
    return decode(command, answer)


def _is_plain(ticket: str) -> bool:
    return ticket.isascii() and ticket.isalnum()


@given(
    acquires(),
    st.text("abc/é ", min_size=1, max_size=9),
    st.lists(CLAIMS | ODD_CLAIMS, min_size=1, max_size=5),
)
@example(MUTEX, "1", [USUAL, Claim("0" * 32, 6), USUAL])
@example(MUTEX, "1", [Claim("0" * 32, None), Claim("0" * 32, 5, lock_delay=7)])
@example(MUTEX, "1", [Claim('a "quoted" one', 5), Claim("é" * 16, 5)])
def test_an_acquire_is_sent_as_by_itself(
    acquire: Acquire, name: str, claims: list[Claim]
) -> None:
    server = Server(acquire.mode, name)
    prepared = server.prepared_acquire(acquire)
    for claim in claims:
        _ = prepared(claim)
        usual = not claim.lease or claim.lock_delay or not _is_plain(claim.ticket)
        server.check_sent(replace(acquire, claims=(claim,)), usually=bool(usual))


@given(HEX_TICKETS | ODD_TICKETS)
@example('a "quoted" one')
@example("é" * 16)
def test_a_release_is_sent_as_by_itself(ticket: str) -> None:
    server = Server(Mode.WRITE)
    _ = server.prepared_release()(ticket)
    server.check_sent(Release(ticket), usually=not _is_plain(ticket))


def check_read(call: Call[Reply], command: Command, answer: Raw) -> None:
    """The answer was read as if the command had been sent by itself."""
    by_itself: Call[Reply] = Call(partial(decode, command), call.args, call.script)
    for one in (call, by_itself):
        one.answered(answer)
    assert repr(call.error) == repr(by_itself.error)
    if call.error is None:
        assert call.result() == by_itself.result()


@given(acquires(), CLAIMS, ANSWERS)
@example(MUTEX, USUAL, [7, 8])
@example(MUTEX, USUAL, [0, 8])
@example(MUTEX, USUAL, [-1, 8])
@example(MUTEX, USUAL, [True, 8])
@example(MUTEX, USUAL, [7, True])
@example(MUTEX, USUAL, [7, 8, 9])
@example(MUTEX, USUAL, b"foo")
@example(MUTEX, USUAL, [-1, 2, 3, 4, b'wab,0,["h",1,"t",""]'])
@example(MUTEX, USUAL, [-9, [7, 8]])
def test_an_acquire_is_read_as_by_itself(
    acquire: Acquire, claim: Claim, answer: Raw
) -> None:
    server = Server(acquire.mode)
    _ = server.prepared_acquire(acquire)(claim)
    ((call, _),) = server.packed
    check_read(call, replace(acquire, claims=(claim,)), answer)


@given(ANSWERS)
@example(1)
@example(True)
@example(0)
@example([-5, 0, 7, b""])
@example([-9, 1])
def test_a_release_is_read_as_by_itself(answer: Raw) -> None:
    server = Server(Mode.WRITE)
    _ = server.prepared_release()(USUAL.ticket)
    ((call, _),) = server.packed
    check_read(call, Release(USUAL.ticket), answer)
