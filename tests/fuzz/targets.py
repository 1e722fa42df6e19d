"""The readers of foreign bytes, each as a function of bytes that a fuzzer can call.

A target returns whatever the bytes are. It raises only if a promise is broken: by an
error that is not documented, by a grant that damage has made, or by work without bound.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import hiredis

from aiorwlock_remote.backends.cassandra import options as cassandra_options
from aiorwlock_remote.backends.etcd import options as etcd_options
from aiorwlock_remote.backends.files.record_file import _decode_slot, unpack_record
from aiorwlock_remote.backends.mariadb import options as mariadb_options
from aiorwlock_remote.backends.oracle import options as oracle_options
from aiorwlock_remote.backends.postgresql import options as postgresql_options
from aiorwlock_remote.backends.postgresql.listener import Listener
from aiorwlock_remote.backends.redis import options as redis_options
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, parse_moved
from aiorwlock_remote.backends.redis.codec import decode_step, pushed_in
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    ProtocolHandler,
    RespProtocol,
    Script,
    SubscribeCall,
)
from aiorwlock_remote.backends.redis.hiredis_reader import (
    MORE,
    new_reader,
    next_reply,
)
from aiorwlock_remote.backends.redis.keys import resource_of
from aiorwlock_remote.backends.redis.recipes import _contenders, _user
from aiorwlock_remote.backends.redis.sentinel import SentinelQuery
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    doorman_columns,
    dump_record,
    pushed_state,
    state_of,
)
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Granted,
    IllegalCommand,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import decode, resource, resource_from_row
from aiorwlock_remote.core.pushed import PushedGrant, unseal
from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, WRITE_LOCK, RowState
from aiorwlock_remote.core.row_grants import TakeRow, load_row_grants
from aiorwlock_remote.core.ticket import Mode, check_ticket, holder_of
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import (
    BackendError,
    BadFence,
    BadRecord,
    ConfigurationError,
    LockError,
)
from aiorwlock_remote.fencing.header import read_fence
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.info import lock_info
from aiorwlock_remote.ports import Snapshot

Target = Callable[[bytes], object]

ORDER = resource("order", 42)
NOW = 1_795_000_000_000_000
"""Microseconds: what the clock of each store shows."""
LEASE = 30_000_000
TICKET = "0123456789abcdef0123456789abcdef"
"""Ours: nothing that is read may prove that it is granted, without knowing it."""
CLAIM = Claim(TICKET, LEASE)
COMMANDS: tuple[Command, ...] = (
    Acquire((CLAIM,), Mode.WRITE),
    Acquire((CLAIM,), Mode.READ, client_id="c", may_queue=True, more=1),
    Acquire((CLAIM,), Mode.PERMIT, limit=2),
    Release(TICKET, Mode.WRITE),
    Renew(((TICKET, LEASE),)),
    Withdraw("c", Mode.WRITE, (TICKET,)),
    Downgrade(TICKET, CLAIM),
    Upgrade(TICKET, CLAIM),
    Adopt(TICKET, CLAIM),
    ForceRelease("0123456789ab", 1),
)


OPTIONS = (
    cassandra_options.options_of,
    etcd_options.options_of,
    mariadb_options.options_of,
    oracle_options.options_of,
    postgresql_options.options_of,
    partial(redis_options.options_of, connect_timeout=5.0),
)


class PromiseBroken(Exception):
    """What a reader of foreign bytes must not do."""


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# ------------------------------------------------------------- stored records


def record(data: bytes) -> None:
    """The doorman's JSON, as SQLite, files and the databases store it."""
    try:
        found = loads(text_of(data))
    except BadRecord:
        return
    use(found)


def table_record(data: bytes) -> None:
    """The doorman in a column: with its fence before it, perhaps compressed."""
    row = StoredRow(
        done=False,
        now=1_795_287_900_000_001,
        created="2026-11-21 19:05:00",
        version="v",
        record=text_of(data),
    )
    try:
        found = state_of(row).record
    except BadRecord:
        return
    if found is not None:
        use(found)
        dump_record(found, begins=True)
        doorman_columns(found)


def use(found: Doorman) -> None:
    """Do with a record what a store does; damage must not let anybody in."""
    if loads(dumps(found)) != found:
        raise PromiseBroken("what is read is not what is written")
    seat = None if found.seat is None else MutexRecord(found.seat)
    lock_info(Snapshot(ORDER, found, seat, NOW, NOW))
    living = [grant for grant in found.grants if not grant.dead(NOW)]
    for command in COMMANDS:
        try:
            reply = transition(found, seat, command, NOW, NOW).reply
        except IllegalCommand:
            continue
        ours = any(grant.ticket == TICKET for grant in found.grants)
        if not isinstance(reply, Granted) or not isinstance(command, Acquire) or ours:
            continue
        writes = any(grant.mode is Mode.WRITE for grant in living)
        if seat is not None and living and (writes or command.mode is Mode.WRITE):
            raise PromiseBroken(f"{command.mode} beside {living}")


def file_slot(data: bytes) -> None:
    """A slot of a record's file, and what a slot holds."""
    with suppress(BadRecord):
        _decode_slot(data)
    try:
        stored = unpack_record(data)
    except BadRecord:
        return
    record(stored.record.encode("utf-8", "surrogateescape"))


def row_grants(data: bytes) -> None:
    """The column of a row lock with leases."""
    for mark, readers in ((UNLOCK, 0), (READ_LOCK, 1), (WRITE_LOCK, 0)):
        found = load_row_grants(RowState(mark, readers), text_of(data))
        if found is None:
            continue
        taken = TakeRow(TICKET, Mode.WRITE, LEASE, "x")(found, NOW)
        others = [one for one in found.valid().grants if one.expires > NOW]
        known = any(one.ticket == TICKET for one in found.grants)
        if taken.grant is not None and others and not known:
            raise PromiseBroken(f"a row that is locked was taken: {others}")


# ------------------------------------------------------------------- Redis


class Wire:
    """A transport that takes everything and sends nothing."""

    def write(self, data: bytes) -> None: ...
    def wake(self) -> None: ...
    def unsent(self) -> int:
        return 0

    def abort(self) -> None: ...
    async def aclose(self) -> None: ...


class Listening(ProtocolHandler):
    """Reads each message as the store does."""

    def message_received(self, channel: bytes, payload: bytes) -> None:
        wake_message(payload)
        resource_of("", channel)

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        for call in unsent:
            call.failed(error)


SCRIPT = Script("enter", "return 1")


LARGE = re.compile(rb"[*%~>|][0-9]{7}")
"""A list of so many items that hiredis takes memory for all of them at once."""


def resp(data: bytes) -> None:
    """What a server sends on a connection with calls of each kind under way."""
    if LARGE.search(data):
        return
    for size in (len(data) or 1, 7):
        protocol = RespProtocol("h:1", (SCRIPT,), Listening())
        protocol.transport = Wire()
        calls: list[Call[Any]] = [
            Call(partial(decode_step, command), (1, "key"), SCRIPT)
            for command in COMMANDS
        ]
        calls += [SubscribeCall("SUBSCRIBE", b"c"), Call(decode_look_of, ("X",))]
        for call in calls:
            protocol.send(call, call.packed())
        if size > 7:
            protocol.flush()
        for start in range(0, len(data), size):
            protocol.received(data[start : start + size])
        protocol.lost(None)
        for call in calls:
            check_call(call)


def check_call(call: Call[Any]) -> None:
    if not call.done():
        raise PromiseBroken(f"{call.name} is never answered")
    error = call.error
    if error is not None and not isinstance(error, LockError):
        raise PromiseBroken(f"{error!r} of {call.name}")
    if error is None and call.script is not None:
        reply = call.result()[0]
        if isinstance(reply, Granted) and not all(
            grant.fence > 0 and grant.ticket == TICKET for grant in reply.grants
        ):
            raise PromiseBroken(f"granted: {reply}")


def decode_look_of(raw: object) -> Snapshot:
    return decode_look(ORDER, raw)


def parsed(data: bytes) -> list[Any]:
    reader = new_reader()
    reader.feed(data)
    found: list[Any] = []
    try:
        while (item := next_reply(reader)) is not MORE:
            found.append(item)
    except hiredis.ProtocolError:
        pass
    return found


def replies(data: bytes) -> None:
    """Answers of scripts, and of the cluster and Sentinel, as hiredis parses them."""
    found = [] if LARGE.search(data) else parsed(data)
    slots = SlotMap([("h", 1)])
    for raw in found:
        for read in (
            *(partial(decode_step, command) for command in COMMANDS),
            partial(slots.learn, asked=("h", 1)),
            *(_contenders, _user),
        ):
            try:
                reply = cast("Any", read)(raw)
            except (BackendError, ConfigurationError):
                continue
            if isinstance(reply, tuple) and isinstance(reply[0], Granted):
                check_granted(reply[0])
        parse_moved(str(raw), ("h", 1))
        look(raw)
    if len(found) > 1:
        sentinel(found)


def check_granted(reply: Granted) -> None:
    if any(grant.fence <= 0 or grant.ticket != TICKET for grant in reply.grants):
        raise PromiseBroken(f"granted: {reply}")


def look(raw: object) -> None:
    call: Call[Any] = Call(decode_look_of, ("X",))
    call.answered(raw)
    if call.error is None:
        lock_info(call.result())
    elif not isinstance(call.error, LockError):
        raise PromiseBroken(repr(call.error))


def sentinel(found: list[Any]) -> None:
    query = object.__new__(SentinelQuery)
    query.where, query._name, query._min_others = "h:1", "locks", 0
    query._login = ("user", "secret")
    try:
        query._read(found[:-1], found[-1])
    except (BackendError, ConfigurationError) as exc:
        if "secret" in str(exc):
            raise PromiseBroken("a password is shown") from exc


def stored_hash(data: bytes) -> None:
    """The fields of a doorman that Redis stores, as ``look`` returns them."""
    parts = data.split(b"\0")
    state = [b"v", b"1", *parts[: len(parts) // 2 * 2], b"place:w:c", parts[-1]]
    for queue in ([], [b"w:c"]):
        look([NOW, None, -1, state, queue, [TICKET.encode(), parts[0]]])


def wake_message(data: bytes) -> None:
    """A message on a wake-up channel: a key, perhaps with a pushed grant."""
    _, _, rest = data.rpartition(b" ")
    found = pushed_in(rest)
    if found is not None:
        check_pushed(found)
    resource_of("", data)


def check_pushed(found: PushedGrant) -> None:
    if found.proves(TICKET):
        raise PromiseBroken(f"a proof was guessed: {found}")


# -------------------------------------------------------------- hints, NOTIFY


def notify(data: bytes) -> None:
    """A payload of NOTIFY, which any session may send."""
    notified: list[tuple[Any, ...]] = []
    listener = object.__new__(Listener)
    listener._driver_loop = cast(
        "Any", SimpleNamespace(tell=lambda *call: notified.append(call))
    )
    listener._on_wake = listener._on_arrival = cast("Any", None)
    listener._notified(None, 1, "rwlock_c", text_of(data))
    for _, kind, number, *more in notified:
        str(resource_from_row(kind, number).label)
        if len(more) == 2:
            woken(*more)


def woken(found: StoredRow | None, pushed: PushedGrant | None) -> None:
    if pushed is not None:
        check_pushed(pushed)
    try:
        if found is not None and pushed is not None:
            pushed_state(found, pushed, TICKET)
            raise PromiseBroken("a sealed record was forged")
        if found is not None:
            state = state_of(found)
            if state.record is not None:
                use(state.record)
    except BadRecord:
        pass


def hint(data: bytes) -> None:
    """A hint of another client: which resource to look at."""
    seen: list[object] = []

    def look_now(one: object) -> bool:
        seen.append(one)
        return True

    store = SimpleNamespace(poller=SimpleNamespace(look_now=look_now))
    for payload in (data, text_of(data)):
        CasLockStore.hinted(cast("Any", store), payload)
    for one in seen:
        str(cast("Any", one).label)


def sealed(data: bytes) -> None:
    """The record in a pushed grant's message."""
    if unseal(text_of(data), TICKET, "nonce") is not None:
        raise PromiseBroken("a seal was guessed")


# ------------------------------------------------------------ what users pass


def fence_header(data: bytes) -> None:
    try:
        fence = read_fence([data.decode("latin-1")])
    except BadFence:
        return
    if not 0 <= fence < 2**63:
        raise PromiseBroken(f"a fence of {fence}")


def ticket(data: bytes) -> None:
    """A ticket or token that a user brings, and the text of ``detach``."""
    holder_of(text_of(data))
    body = base64.urlsafe_b64encode(data).decode()
    for text in (text_of(data), tickets._MARK + text_of(data), tickets._MARK + body):
        try:
            tickets.read(text)
        except ConfigurationError as exc:
            check_shown(text, exc)
    try:
        check_ticket(text_of(data))
    except ConfigurationError:
        return
    if b"," in data or b"\n" in data:
        raise PromiseBroken("a ticket that splits the published record")


def name(data: bytes) -> None:
    """A stored name, by whoever wrote it."""
    for text in (text_of(data), data.decode(errors="replace")):
        decode(text)
    resource_of("", b"mutex_locks/" + data)
    resource_of("", data)


def url(data: bytes) -> None:
    """A store's URL, with its options, before anything is opened."""
    text = text_of(data)
    try:
        address = parse(text)
    except ConfigurationError as exc:
        check_shown(text, exc)
        return
    str(address)
    for read in OPTIONS:
        try:
            read(address)
        except LockError as exc:
            check_shown(text, exc)


def check_shown(text: str, error: Exception) -> None:
    if "\n" in str(error) or "\x1b" in str(error):
        raise PromiseBroken(f"an error of {text!r} steers the terminal")


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        *(record, table_record, file_slot, row_grants, stored_hash),
        *(resp, replies, wake_message, notify, hint, sealed),
        *(fence_header, ticket, name, url),
    )
}
