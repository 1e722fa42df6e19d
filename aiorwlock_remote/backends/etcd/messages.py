"""Messages of etcd's gRPC API: the few that this library sends and reads.

The bytes are those of Protocol Buffers. Code that is generated from etcd's definitions
would register the names of their files for the whole process, and so exclude every
other etcd client in it. Field numbers: ``api/etcdserverpb/rpc.proto`` and
``api/mvccpb/kv.proto`` of etcd 3.4 and later; a reader skips fields that it does not
know, so newer servers may add some.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

KV = "/etcdserverpb.KV/"
TXN, RANGE = KV + "Txn", KV + "Range"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
WATCH = "/etcdserverpb.Watch/Watch"
STATUS = "/etcdserverpb.Maintenance/Status"
ALARM = "/etcdserverpb.Maintenance/Alarm"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"

_MOD_REVISION = 2  # of Compare.target
_DELETED = 1  # of Event.type
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SHORT = tuple(bytes([number]) for number in range(0x80))
_MAX_VARINT_BITS = 63  # of 64: ids have all of them

Fields = Iterator[tuple[int, int | bytes]]


# ----------------------------------------------------------------------- the encoding


def varint(number: int) -> bytes:
    """Return a number, not negative, as a varint."""
    if number < len(_SHORT):
        return _SHORT[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(number: int, content: int) -> bytes:
    """Return a field of a number; nothing for 0, which is the default."""
    return varint(number << 3) + varint(content) if content else b""


def text(number: int, content: bytes) -> bytes:
    """Return a field of bytes, a text or a message; nothing if it is empty."""
    return message(number, content) if content else b""


def message(number: int, content: bytes) -> bytes:
    """Return a field of a message, which may be empty."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def fields(data: bytes) -> Fields:
    """Yield the number and content of each field; raise ``ValueError`` for others."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _read_varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in {_FIXED32, _FIXED64}:
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field of the unknown kind {kind}")
        if at + size > end:
            raise ValueError("a field is cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    number = shift = 0
    while shift <= _MAX_VARINT_BITS and at < len(data):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError("a number is cut off")


def _number(content: int | bytes) -> int:
    if isinstance(content, int):
        return content
    raise ValueError("bytes in place of a number")


def _bytes(content: int | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    raise ValueError("a number in place of bytes")


# ----------------------------------------------------------------------------- requests


def get(key: bytes, *, serializable: bool = False) -> bytes:
    """Return a RangeRequest for one key."""
    return text(1, key) + integer(7, serializable)


def get_range(
    start: bytes, end: bytes, limit: int, revision: int = 0, *, keys_only: bool = False
) -> bytes:
    """Return a RangeRequest for keys from ``start`` to before ``end``, in order."""
    shown = integer(3, limit) + integer(4, revision) + integer(8, keys_only)
    return text(1, start) + text(2, end) + shown


def put(key: bytes, content: bytes, lease: int = 0) -> bytes:
    """Return a PutRequest; ``lease`` is the id of a lease, 0 for none."""
    return text(1, key) + text(2, content) + integer(3, lease)


def compare(key: bytes, mod_revision: int) -> bytes:
    """Return a Compare that the key has this ``mod_revision``; 0: it does not exist."""
    target = integer(2, _MOD_REVISION) + text(3, key)
    # Zero is written, too: it says which member of the union is meant.
    return target + varint(6 << 3) + varint(mod_revision)


def transaction(
    conditions: list[bytes], then: list[bytes], otherwise: list[bytes]
) -> bytes:
    """Return a TxnRequest of Compares and operations (``*_operation``)."""
    parts = ((1, conditions), (2, then), (3, otherwise))
    return b"".join(message(n, part) for n, group in parts for part in group)


def get_operation(request: bytes) -> bytes:
    """Return the operation of a transaction that reads."""
    return message(1, request)


def put_operation(request: bytes) -> bytes:
    """Return the operation of a transaction that stores."""
    return message(2, request)


def delete_operation(key: bytes) -> bytes:
    """Return the operation of a transaction that deletes one key."""
    return message(3, text(1, key))


def transaction_operation(request: bytes) -> bytes:
    """Return the operation of a transaction that carries out another one in it."""
    return message(4, request)


def lease_grant(seconds: int) -> bytes:
    """Return a LeaseGrantRequest; the server chooses the id."""
    return integer(1, seconds)


def watch_create(watch_id: int, start: bytes, end: bytes) -> bytes:
    """Return a WatchRequest for what changes in a range from now on."""
    return message(1, text(1, start) + text(2, end) + integer(7, watch_id))


def watch_cancel(watch_id: int) -> bytes:
    """Return a WatchRequest that ends one watch of the stream."""
    return message(2, integer(1, watch_id))


def watch_progress() -> bytes:
    """Return a WatchRequest that asks for a sign of life of the stream."""
    return message(3, b"")


def authenticate(user: str, password: str) -> bytes:
    """Return an AuthenticateRequest for a login."""
    return text(1, user.encode()) + text(2, password.encode())


# ---------------------------------------------------------------------------- responses


class KeyValue(NamedTuple):
    """A stored key. ``mod_revision``: the revision of the cluster that stored it.

    ``content`` may have a ticket in it, so ``repr`` leaves it out.
    """

    key: bytes
    mod_revision: int
    content: bytes

    def __repr__(self) -> str:
        return f"KeyValue({self.key!r}, {self.mod_revision})"


class RangeResponse(NamedTuple):
    """Keys in order; ``revision``: of the cluster, when they were read."""

    cluster_id: int
    revision: int
    found: tuple[KeyValue, ...]
    more: bool


class TxnResponse(NamedTuple):
    """Whether the conditions held; what the operations read; the cluster's revision."""

    revision: int
    succeeded: bool
    found: tuple[KeyValue, ...]


class Change(NamedTuple):
    """A change of a key: what is stored now, None if the key was deleted."""

    key: bytes
    revision: int
    found: KeyValue | None


class WatchResponse(NamedTuple):
    """A message of a watch: that it is created or cancelled, or changes in order.

    All changes of one revision are in one message.
    """

    revision: int = 0
    watch_id: int = 0
    created: bool = False
    cancelled: bool = False
    changes: tuple[Change, ...] = ()
    reason: str = ""


class StatusResponse(NamedTuple):
    """State of one member. ``leader``: the id of the leader it knows, 0 for none."""

    member_id: int = 0
    version: str = ""
    db_size: int = 0
    leader: int = 0
    is_learner: bool = False
    errors: tuple[str, ...] = ()


def parse_range(data: bytes) -> RangeResponse:
    """Read a RangeResponse; raise ``ValueError`` if it is damaged, as all of these."""
    cluster_id, revision, more = 0, 0, False
    found: list[KeyValue] = []
    for number, content in fields(data):
        if number == 1:
            cluster_id, _, revision = _header(_bytes(content))
        elif number == 2:
            found.append(_key_value(_bytes(content)))
        elif number == 3:
            more = bool(content)
    return RangeResponse(cluster_id, revision, tuple(found), more)


def parse_transaction(data: bytes) -> TxnResponse:
    """Read a TxnResponse; of what its operations return, only the keys read."""
    found: list[KeyValue] = []
    revision, succeeded, operations = _transaction(data)
    for kind, inner in operations:
        if kind == 1:
            found.extend(parse_range(inner).found)
    return TxnResponse(revision, succeeded, tuple(found))


def parse_transactions(data: bytes, number: int) -> list[TxnResponse]:
    """Read the TxnResponse of a transaction that has carried out ``number`` others."""
    revision, _, operations = _transaction(data)
    inner = [parse_transaction(answer) for kind, answer in operations if kind == 4]
    if len(inner) != number:
        raise ValueError(f"{len(inner)} answers to {number} transactions")
    # All are of one revision, which the server tells once.
    return [answer._replace(revision=revision) for answer in inner]


def parse_watch(data: bytes) -> WatchResponse:
    """Read a WatchResponse; raise ``ValueError`` for other bytes."""
    revision, watch_id, created, cancelled, reason = 0, 0, False, False, ""
    changes: list[Change] = []
    for number, content in fields(data):
        match number:
            case 1:
                revision = _header(_bytes(content))[2]
            case 2:
                watch_id = _number(content)
            case 3:
                created = bool(content)
            case 4:
                cancelled = bool(content)
            case 6:
                reason = _bytes(content).decode(errors="replace")
            case 11:
                changes.append(_change(_bytes(content)))
            case _:
                pass
    return WatchResponse(revision, watch_id, created, cancelled, tuple(changes), reason)


def parse_status(data: bytes) -> StatusResponse:
    """Read a StatusResponse of ``Maintenance.Status``."""
    member_id, version, size, leader = 0, "", 0, 0
    learner, errors = False, list[str]()
    for number, content in fields(data):
        match number:
            case 1:
                member_id = _header(_bytes(content))[1]
            case 2:
                version = _bytes(content).decode(errors="replace")
            case 3:
                size = _number(content)
            case 4:
                leader = _number(content)
            case 8:
                errors.append(_bytes(content).decode(errors="replace"))
            case 10:
                learner = bool(content)
            case _:
                pass
    return StatusResponse(member_id, version, size, leader, learner, tuple(errors))


def parse_lease_id(data: bytes) -> int:
    """Return the id in a LeaseGrantResponse."""
    return _number(dict(fields(data)).get(2, 0))


def parse_token(data: bytes) -> str:
    """Return the token in an AuthenticateResponse."""
    return _bytes(dict(fields(data)).get(2, b"")).decode()


def parse_alarms(data: bytes) -> list[tuple[int, int]]:
    """Return the member and the kind (1: NOSPACE, 2: CORRUPT) of each alarm."""
    found: list[tuple[int, int]] = []
    for number, content in fields(data):
        if number == 2:
            alarm = dict(fields(_bytes(content)))
            found.append((_number(alarm.get(1, 0)), _number(alarm.get(2, 0))))
    return found


def _transaction(data: bytes) -> tuple[int, bool, list[tuple[int, bytes]]]:
    """Return the revision, whether it succeeded, and the answer to each operation."""
    revision, succeeded = 0, False
    operations: list[tuple[int, bytes]] = []
    for number, content in fields(data):
        if number == 1:
            revision = _header(_bytes(content))[2]
        elif number == 2:
            succeeded = bool(content)
        elif number == 3:
            for kind, inner in fields(_bytes(content)):
                operations.append((kind, _bytes(inner)))
    return revision, succeeded, operations


def _header(data: bytes) -> tuple[int, int, int]:
    """Return the ids of the cluster and of the member, and the revision."""
    found = dict(fields(data))
    cluster_id, member_id, revision = (_number(found.get(n, 0)) for n in (1, 2, 3))
    return cluster_id, member_id, revision


def _key_value(data: bytes) -> KeyValue:
    found = dict(fields(data))
    key, content = _bytes(found.get(1, b"")), _bytes(found.get(5, b""))
    return KeyValue(key, _number(found.get(3, 0)), content)


def _change(data: bytes) -> Change:
    event = dict(fields(data))
    found = _key_value(_bytes(event.get(2, b"")))
    deleted = event.get(1, 0) == _DELETED
    return Change(found.key, found.mod_revision, None if deleted else found)
