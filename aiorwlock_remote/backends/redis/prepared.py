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
    Request,
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
Read = Callable[[Command, object], Reply]
"""Reads any reply to a command of the resource."""

_SAMPLE = "0" * 32
_ONE_ITEM = len(b"*1\r\n")


class _Prepared:
    # What ``sample`` has in common with all requests of its kind, but for its last
    # ``own`` arguments.

    __slots__ = ("_args", "_connection", "_head", "_read", "_script", "_step")

    def __init__(
        self,
        connection: RedisConnection,
        sample: Request,
        own: int,
        read: Read,
        step: Step,
    ) -> None:
        self._script, args = sample
        self._args: tuple[Arg, ...] = args[:-own]
        packed = pack(("EVALSHA", self._script.sha, *self._args))
        _, _, items = packed.partition(b"\r\n")
        self._head: bytes = b"*%d\r\n%b" % (2 + len(args), items)
        self._connection = connection
        self._read = read
        self._step = step


class PreparedAcquire(_Prepared):
    """Sends acquires of one resource that differ in their claims alone."""

    __slots__ = ("_acquire", "_lease", "_packed_lease")

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        acquire: Acquire,
        client_id: str,
        read: Read,
        step: Step,
    ) -> None:
        """``acquire``: what all of them ask for; its claim does not count."""
        sample = replace(acquire, claims=(Claim(_SAMPLE, MICROS),))
        # Ticket, lease and details are the request's own.
        super().__init__(connection, encode(keys, sample, client_id), 3, read, step)
        self._acquire = acquire
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
        call = Call(partial(self._answered, claim), args, self._script)
        return self._connection.send_packed(call, packed)

    def _answered(self, claim: Claim, raw: Raw) -> Reply:
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
        return self._read(replace(acquire, claims=(claim,)), raw)


class PreparedRelease(_Prepared):
    """Sends releases of one resource that carry nothing along, in any mode."""

    __slots__ = ()

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        client_id: str,
        read: Read,
        step: Step,
    ) -> None:
        sample = encode(keys, Release(_SAMPLE), client_id)
        super().__init__(connection, sample, 1, read, step)

    def __call__(self, ticket: str) -> Pending[Reply]:
        encoded = ticket.encode("utf-8", "replace")
        if not encoded.isalnum():
            return self._step(Release(ticket))
        packed = b"%b$%d\r\n%b\r\n" % (self._head, len(encoded), encoded)
        args = (*self._args, ticket)
        call = Call(partial(self._answered, ticket), args, self._script, must_go=True)
        return self._connection.send_packed(call, packed)

    def _answered(self, ticket: str, raw: Raw) -> Reply:
        if type(raw) is int and raw == 1:
            return WAS_HELD
        return self._read(Release(ticket), raw)
