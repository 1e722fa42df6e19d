"""Requests that are encoded but for their ticket, for a lock that is acquired often.

What the acquires and releases of one resource have in common is encoded once. The rest
is put behind it, in the form that the server reads (RESP): ``$``, the length, the
bytes. Requests, and the replies to them, are those of ``codec``
(``tests/backends/redis/test_prepared_requests.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiorwlock_remote.backends.redis.codec import WAS_HELD, encode, encode_who
from aiorwlock_remote.backends.redis.connection.protocol import (
    Arg,
    Call,
    Raw,
    Script,
    pack,
)
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Granted,
    Release,
    Reply,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import new_holder_of
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import replace

if TYPE_CHECKING:
    from aiorwlock_remote._util.pending import Pending
    from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
    from aiorwlock_remote.backends.redis.keys import Keys

Step = Callable[[Command], "Pending[Reply]"]
"""Sends a command of the resource in the usual way."""
Decode = Callable[["Keys", Command, object], Reply]
"""Reads any reply to a command."""

_SAMPLE = "0" * 32
_ONE_ITEM = len(b"*1\r\n")


class PreparedAcquire:
    """Sends acquires of one resource that differ in their claims alone."""

    __slots__ = (
        *("_acquire", "_args", "_connection", "_decode", "_head", "_keys", "_lease"),
        *("_packed_lease", "_script", "_step"),
    )

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        acquire: Acquire,
        client_id: str,
        decode: Decode,
        step: Step,
    ) -> None:
        """``acquire``: what all of them ask for; its claim does not count."""
        self._connection = connection
        self._keys = keys
        self._acquire = acquire
        self._decode = decode
        self._step = step
        sample = replace(acquire, claims=(Claim(_SAMPLE, MICROS),))
        self._script, args = encode(keys, sample, client_id)
        self._args: tuple[Arg, ...] = args[:-3]  # without ticket, lease and details
        self._head = _packed_head(self._script, self._args, 3)
        self._lease, self._packed_lease = 0, b""

    def __call__(self, claim: Claim) -> Pending[Reply]:
        ticket, lease, who = claim.ticket, claim.lease, claim.who
        encoded = ticket.encode("utf-8", "replace")
        if not lease or claim.lock_delay or not encoded.isalnum():
            # Rare: encoded in another way, or in need of quotes.
            return self._step(replace(self._acquire, claims=(claim,)))
        if lease != self._lease:
            self._lease, self._packed_lease = lease, pack((lease,))[_ONE_ITEM:]
        shown = encode_who(who.host, who.pid, who.task, who.reason)
        details = f"{new_holder_of(ticket)},0,{shown}"
        packed = b"%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
            *(self._head, len(encoded), encoded, self._packed_lease),
            *(len(details), details.encode()),
        )
        args = (*self._args, ticket, lease, details)
        call = Call(partial(self._read, claim), args, self._script)
        return self._connection.send_packed(call, packed)

    def _read(self, claim: Claim, raw: Raw) -> Reply:
        # Nearly always two numbers, fence and time of a grant.
        acquire, lease = self._acquire, claim.lease
        items: list[Raw] = raw
        if type(items) is list and len(items) == 2:
            fence, now = items
            grants = type(fence) is int and fence > 0 and type(now) is int
            if grants and lease is not None:
                ticket, mode, limit = claim.ticket, acquire.mode, acquire.limit
                who, delay, ends = claim.who, claim.lock_delay, now + lease
                grant = Grant(ticket, mode, fence, now, ends, who, delay, limit)
                return Granted((grant,), now)
        return self._decode(self._keys, replace(acquire, claims=(claim,)), raw)


class PreparedRelease:
    """Sends releases of one resource that carry nothing along, in any mode."""

    __slots__ = (
        *("_args", "_connection", "_decode", "_head", "_keys", "_script", "_step"),
    )

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        client_id: str,
        decode: Decode,
        step: Step,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._decode = decode
        self._step = step
        self._script, args = encode(keys, Release(_SAMPLE), client_id)
        self._args: tuple[Arg, ...] = args[:-1]
        self._head = _packed_head(self._script, self._args, 1)

    def __call__(self, ticket: str) -> Pending[Reply]:
        encoded = ticket.encode("utf-8", "replace")
        if not encoded.isalnum():
            return self._step(Release(ticket))
        packed = b"%b$%d\r\n%b\r\n" % (self._head, len(encoded), encoded)
        args = (*self._args, ticket)
        call = Call(partial(self._read, ticket), args, self._script, must_go=True)
        return self._connection.send_packed(call, packed)

    def _read(self, ticket: str, raw: Raw) -> Reply:
        if type(raw) is int and raw == 1:
            return WAS_HELD
        return self._decode(self._keys, Release(ticket), raw)


def _packed_head(script: Script, args: tuple[Arg, ...], following: int) -> bytes:
    # Of a request that has as many items more.
    _, _, items = pack(("EVALSHA", script.sha, *args)).partition(b"\r\n")
    return b"*%d\r\n%b" % (2 + len(args) + following, items)
