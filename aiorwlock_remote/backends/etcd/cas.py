"""The two keys of a resource as a compare-and-set store.

``/mutex_locks/order,42`` has the published mutex record (``ticket,seconds``) while the
resource is held, ``/mutex_locks/order,42,doorman`` the doorman as JSON, with fields
that a doorman has nowhere else:

* ``frame``: the row's own time, in microseconds (``VersionClock``);
* ``"fence": "mod_revision"`` if the fence of the present phase is the revision at which
  the key was stored.

A step after which other clients may claim the resource also stores a JSON object under
``/mutex_locks/order,42,claim``, which all that wait watch: their ids (``clients``), and
if it is short the new doorman (``doorman``) and mutex record (``seat``: its revision, 0
for that of the claim, and text), so that they need not read them.

A step of a client that waits for a held resource stores the same under
``/mutex_locks/,ID``, with the resource (``key``), for the client that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.idle_lease import IdleLease
from aiorwlock_remote.backends.etcd.messages import KeyValue
from aiorwlock_remote.cas import (
    ArrivalNotices,
    CasContention,
    CasStore,
    DriverLoop,
    StepTimes,
    StoredState,
    SwapReply,
    VersionClock,
    WrittenAt,
    map_pending,
    relative_fences,
    submit,
    with_fence,
)
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.ports import (
    Clock,
    Doorman,
    MutexRecord,
    Pending,
    Resource,
    dumps,
    loads,
    resource_from_key,
)

FRAME, FENCE, MOD_REVISION = "frame", "fence", "mod_revision"
MAX_CLAIM_BYTES = 4096
"""Of a doorman in a claim or a notice. Each client that waits gets the claim, and few
of them need the doorman.
"""
MAX_KEYS_CACHED = 1024

Transact = Callable[[bytes], Awaitable[messages.TxnResponse]]


@dataclass(frozen=True, slots=True)
class Mark:
    """What identifies a version: the revisions of both keys, 0 for one that is absent.

    ``written``: when the doorman was written and seen, None if there is none.
    """

    doorman: int = 0
    seat: int = 0
    written: WrittenAt | None = field(default=None, compare=False)


class Stored(NamedTuple):
    """Both keys of a resource, None for one that is absent, as they are at a revision
    of the cluster.
    """

    seat: KeyValue | None
    doorman: KeyValue | None
    revision: int


UNUSED = StoredState(None, None, Mark())
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError)
"""What reading a claim or a notice raises if another program has written it."""


class EtcdCas(CasStore):
    """The cluster, as one event loop or thread uses it: a swap is one transaction.

    Invariants, each with the test that fails without it (in ``tests/backends/etcd``):

    * A fence is above all fences before it, although the revisions of the cluster may
      be lower than one that is stored: keys were copied from another cluster
      (test_store.py: test_keys_from_another_cluster).
    * Each doorman has a time of its own, although a transaction of another program may
      store several at one revision
      (test_store.py: test_two_doormen_of_one_revision_have_times_of_their_own).
    * A state that was seen in one cluster is never swapped in another one that was
      restored from its snapshot (test_cluster.py: test_a_restored_cluster_is_refused).
    """

    def __init__(
        self,
        client: Client,
        loop: DriverLoop,
        clock: Clock,
        versions: VersionClock,
        idle_lease: IdleLease,
        arrivals: ArrivalNotices,
        transact: Transact | None = None,
    ) -> None:
        """Create the store.

        Args:
            client: Used in ``loop`` alone.
            loop: Runs the client.
            clock: The local clock.
            versions: Shared by all such stores of a ``Locks``.
            idle_lease: The lease with which the doorman of a free resource ends.
            arrivals: Decides which client is notified when the queue changes.
            transact: Carries out a swap; None: the client, each in its own request.
        """
        super().__init__(clock)
        self._client = client
        self._transact = transact or client.transact
        self._keys_of = client.options.keys_of
        self._loop = loop
        self._versions = versions
        self._idle_lease = idle_lease
        self._arrivals = arrivals
        self._told: dict[Resource, Stored] = {}

    def guess(self) -> StoredState:
        return UNUSED

    def times(self, state: StoredState) -> StepTimes:
        mark: Mark = state.mark
        return self._versions.times(mark.written, self.local_clock)

    def load(self, resource: Resource) -> Pending[StoredState]:
        return self._get(resource, serializable=False)

    def peek(self, resource: Resource) -> Pending[StoredState]:
        """Return what a claim has brought since the last call, else read what this
        member knows, without asking the others: it knows all changes it has reported.
        """
        told = self._told.pop(resource, None)
        if told is None:
            return self._get(resource, serializable=True)
        got: Pending[Stored] = Pending()
        got.set_result(told)
        return map_pending(got, self.state)

    def claimed(self, resource: Resource, claim: KeyValue, client_id: str) -> bool:
        """Take in a claim; return True if it names this client."""
        try:
            told = json.loads(claim.content)
            if client_id not in told["clients"]:
                return False
            if (stored := self._brought(resource, told, claim)) is not None:
                self._told[resource] = stored
        except _NOT_OURS:
            self.forget(resource)  # another program has written there: it is read
        return True

    def notified(self, notice: KeyValue) -> tuple[Resource, StoredState | None] | None:
        """Return the resource that a notice is about, and its state if it is there.

        None: another program has written the notice.
        """
        try:
            told = json.loads(notice.content)
            resource = resource_from_key(told["key"])
            stored = self._brought(resource, told, notice)
            return resource, None if stored is None else self.state(stored)
        except (*_NOT_OURS, BadRecord):
            return None

    def forget(self, resource: Resource) -> None:
        """Forget the state that a claim has brought."""
        self._told.pop(resource, None)

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        swapped = partial(self._swap, resource, state, record, seat, times, wakes)
        return submit(self._loop, swapped, at_once=True)

    # ----------------------------------------------------------------------- inside

    def state(self, stored: Stored, *, listed: bool = False) -> StoredState:
        """Return the state that two keys have; raise ``BadRecord``.

        ``listed``: they are of a list, which must not displace what is waited for
        (test_store.py: test_a_list_does_not_forget_what_is_waited_for).
        """
        seat, doorman, order = stored
        held = None if seat is None else MutexRecord(_decoded(seat))
        seat_revision = 0 if seat is None else seat.mod_revision
        if doorman is None:
            return StoredState(None, held, Mark(seat=seat_revision), order)
        record = loads(_decoded(doorman))
        fields = dict(record.extra)
        frame, fence = fields.pop(FRAME, None), fields.pop(FENCE, None)
        if type(frame) is not int or fence not in {None, MOD_REVISION}:
            raise BadRecord(what="the stored record has no time, or an unknown fence")
        record = replace(record, extra=tuple(fields.items()))
        revision = doorman.mod_revision
        if fence is not None:
            record = with_fence(record, revision)
        times = frame, record.updated
        if listed:
            written = WrittenAt(*times, self.clock())
        else:
            version = self._version(doorman.key, revision)
            written = self._versions.read(version, *times, self.local_clock)
        return StoredState(record, held, Mark(revision, seat_revision, written), order)

    def _brought(
        self, resource: Resource, told: dict[str, Any], by: KeyValue
    ) -> Stored | None:
        """Return both keys, as a claim or a notice has brought them."""
        text, seat = told.get("doorman"), told.get("seat")
        if text is None:
            return None
        seat_key, key, _ = self._keys_of(resource)
        revision = by.mod_revision
        held = seat and KeyValue(seat_key, seat[0] or revision, seat[1].encode())
        return Stored(held, KeyValue(key, revision, text.encode()), revision)

    def _holder_behind(self, before: Doorman | None, record: Doorman) -> str | None:
        """Return the client to notify that only the queue behind it has changed.

        Also of an entry that is kept or given back: each is a new version, from which
        the holder's release has to start.
        """
        if before is None or not record.grants or record.grants != before.grants:
            return None
        return self._arrivals.behind(record)

    def _get(self, resource: Resource, *, serializable: bool) -> Pending[StoredState]:
        read = partial(self._read, resource, serializable=serializable)
        return map_pending(submit(self._loop, read, at_once=True), self.state)

    async def _read(self, resource: Resource, *, serializable: bool) -> Stored:
        keys = self._keys_of(resource)[:2]
        request = messages.transaction([], _gets(keys, serializable=serializable), [])
        return _stored_in(await self._client.transact(request), keys)

    async def _swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...],
    ) -> SwapReply:
        seat_key, key, claim_key = self._keys_of(resource)
        keys = seat_key, key
        mark: Mark = state.mark
        record, text, begins = self._encoded(state.record, record, times)
        # A free resource's doorman ends by itself, much later.
        busy = record.grants or record.queue or record.upgrader or seat is not None
        lease = 0 if busy else await self._idle_lease.id()
        then = [messages.put_operation(messages.put(key, text.encode(), lease))]
        writes = seat is not None and (
            state.seat is None or state.seat.value != seat.value
        )
        if seat is not None and writes:
            put = messages.put(seat_key, seat.value.encode())
            then.append(messages.put_operation(put))
        elif seat is None and mark.seat:
            then.append(messages.delete_operation(seat_key))
        told: list[tuple[bytes, dict[str, object]]] = []
        if wakes:
            told.append((claim_key, {"clients": wakes}))
        holder = self._holder_behind(state.record, record)
        if holder is not None:
            notices = self._client.options.notices_of(holder)
            told.append((notices, {"key": resource.key}))
        if told and not lease:
            # These are of use for a moment, and need not stay for ever.
            lease = await self._idle_lease.id()
        seat_now = None
        if seat is not None:
            seat_now = 0 if writes else mark.seat, seat.value
        then += [_message(*each, text, seat_now, lease) for each in told]
        conditions = [
            messages.compare(key, mark.doorman),
            messages.compare(seat_key, mark.seat),
        ]
        request = messages.transaction(conditions, then, _gets(keys))
        try:
            found = await self._transact(request)
        except CasContention:
            self._idle_lease.forget()  # another client has revoked it
            raise
        if not found.succeeded:
            return False, self.state(_stored_in(found, keys))
        revision = found.revision
        written = self._versions.wrote(self._version(key, revision), times)
        seat_revision = revision if writes else mark.seat if seat is not None else 0
        new = Mark(revision, seat_revision, written)
        stored = with_fence(record, revision) if begins else record
        return True, StoredState(stored, seat, new, order=revision)

    def _encoded(
        self, before: Doorman | None, record: Doorman, times: StepTimes
    ) -> tuple[Doorman, str, bool]:
        """Return what is stored, its text, and whether its fence is the revision."""
        last = 0 if before is None else before.last
        if record.updated != times.wall:
            record = replace(record, updated=times.wall)
        # The revision will be above ``client.revision``, and is the last fence of this
        # step (of several permits) only if none of the fences would be too low.
        reached = record.last <= self._client.revision + 1
        begins = record.last > last and reached
        if begins:
            record = relative_fences(record, last)
        marks: list[tuple[str, object]] = [(FRAME, times.now)]
        if begins:
            marks.append((FENCE, MOD_REVISION))
        text = dumps(replace(record, extra=(*record.extra, *marks)))
        return record, text, begins

    def _version(self, key: bytes, revision: int) -> tuple[int, bytes, int]:
        # A transaction stores several keys at one revision, and a cluster that was
        # restored counts anew from an older one.
        return self._client.cluster_id, key, revision


def _stored_in(found: messages.TxnResponse, keys: tuple[bytes, bytes]) -> Stored:
    by_key = {each.key: each for each in found.found}
    seat, doorman = map(by_key.get, keys)
    return Stored(seat, doorman, found.revision)


def _message(
    key: bytes,
    told: dict[str, object],
    text: str,
    seat: tuple[int, str] | None,
    lease: int,
) -> bytes:
    """Return the operation that stores a claim or a notice, with both keys if short."""
    if len(text) <= MAX_CLAIM_BYTES:
        told |= {"seat": seat, "doorman": text}
    return messages.put_operation(messages.put(key, json.dumps(told).encode(), lease))


@lru_cache(MAX_KEYS_CACHED)
def _gets(keys: tuple[bytes, bytes], *, serializable: bool = False) -> list[bytes]:
    return [
        messages.get_operation(messages.get(key, serializable=serializable))
        for key in keys
    ]


def _decoded(found: KeyValue) -> str:
    try:
        return found.content.decode()
    except UnicodeDecodeError as exc:
        raise BadRecord(what="the stored text is not UTF-8") from exc
