"""Renewals in one request: each with an outcome of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorwlock_remote import BackendUnavailable, Locks, Unsupported, connect
from aiorwlock_remote.backends.etcd import group_commit, messages
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.group_commit import GroupCommit
from aiorwlock_remote.backends.etcd.messages import TxnResponse
from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.ports import Renewal
from tests.backends.etcd.inside import store_of
from tests.servers.fix_etcd import SharedEtcd, StartEtcd

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "the bridge to trio is the library's own"),
]

LEASE = 300_000_000
"""Microseconds."""


def put_if(key: bytes, revision: int, content: bytes) -> bytes:
    """Return a transaction that stores a key of that revision, or else reads it."""
    return messages.transaction(
        [messages.compare(key, revision)],
        [messages.put_operation(messages.put(key, content))],
        [messages.get_operation(messages.get(key))],
    )


class Spy:
    """The requests of a client, by how many transactions are in each."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._call = client.call
        monkeypatch.setattr(client, "call", self.call)

    async def call(self, path: str, request: bytes, *rest: Any) -> Any:  # noqa: ANN401
        if path == messages.TXN:
            then = [part for number, part in messages.fields(request) if number == 2]
            inner = [n for part in then for n, _ in messages.fields(bytes(part))]
            self.sizes.append(max(1, inner.count(4)))
        return await self._call(path, request, *rest)


def client_of(locks: Locks) -> Client:
    return store_of(locks)._client


def keys_for(url: str, number: int) -> list[bytes]:
    folder = url.rpartition("/")[2]
    return [f"/{folder}/group,{n}".encode() for n in range(number)]


async def test_each_is_carried_out_as_if_alone(
    etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own condition decides; the revision is that of what it has stored."""
    async with connect(etcd_url) as locks:
        client = client_of(locks)
        keys = keys_for(etcd_url, 5)
        stored = await client.transact(put_if(keys[3], 0, b"theirs"))
        spy = Spy(client, monkeypatch)
        group = GroupCommit(client)
        answers = await asyncio.gather(
            *(group.transact(put_if(key, 0, b"ours")) for key in keys)
        )
        assert spy.sizes == [5]
        assert [one.succeeded for one in answers] == [True, True, True, False, True]
        assert {one.revision for one in answers} == {stored.revision + 1}
        found = answers[3].found[0]
        assert (found.mod_revision, found.content) == (stored.revision, b"theirs")
        assert client.revision == stored.revision + 1
        read = await asyncio.gather(
            *(group.transact(put_if(key, 0, b"")) for key in keys)
        )
        contents = [(one.found[0].mod_revision, one.found[0].content) for one in read]
        ours, theirs = (stored.revision + 1, b"ours"), (stored.revision, b"theirs")
        assert contents == [ours, ours, ours, theirs, ours]


async def test_a_refused_one_fails_no_other(
    etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that the server does not take, or a lease that is not there."""
    async with connect(etcd_url) as locks:
        client = client_of(locks)
        put = messages.put(b"k", b"v", 12345)
        errors: dict[type[Exception], bytes] = {
            Unsupported: put_if(b"", 0, b"x"),
            CasContention: messages.transaction([], [messages.put_operation(put)], []),
        }
        for number, (error, request) in enumerate(errors.items()):
            spy = Spy(client, monkeypatch)
            keys = keys_for(f"{etcd_url}-{number}", 3)
            group = GroupCommit(client)
            requests = [*(put_if(key, 0, b"ours") for key in keys), request]
            *good, bad = await asyncio.gather(
                *map(group.transact, requests), return_exceptions=True
            )
            assert isinstance(bad, error)
            assert all(isinstance(one, TxnResponse) and one.succeeded for one in good)
            assert spy.sizes == [4, 1, 1, 1, 1]


async def test_an_answer_that_is_lost_fails_all(
    etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may take it for not carried out, and nothing is sent again."""
    async with connect(etcd_url) as locks:
        client = client_of(locks)
        group = GroupCommit(client)
        keys = keys_for(etcd_url, 3)
        call, sent = client.call, list[str]()

        async def lost(path: str, *rest: Any) -> Any:  # noqa: ANN401
            sent.append(path)
            await call(path, *rest)
            raise BackendUnavailable(what="lost")

        monkeypatch.setattr(client, "call", lost)
        failed = await asyncio.gather(
            *(group.transact(put_if(key, 0, b"ours")) for key in keys),
            return_exceptions=True,
        )
        assert sent == [messages.TXN]
        for one in failed:
            assert isinstance(one, BackendUnavailable)
            assert not one.nothing_done
        monkeypatch.undo()
        answer = await group.transact(put_if(keys[2], 0, b"again"))
        assert answer.found[0].content == b"ours"


@pytest.mark.parametrize("who", [0, 1], ids=["the first", "another"])
async def test_who_is_cancelled_takes_nobody_along(etcd_url: str, who: int) -> None:
    async with connect(etcd_url) as locks:
        group = GroupCommit(client_of(locks))
        keys = keys_for(etcd_url, 4)
        tasks = [
            asyncio.create_task(group.transact(put_if(key, 0, b"ours")))
            for key in keys[:3]
        ]
        await asyncio.sleep(0)
        tasks[who].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ended.pop(who), asyncio.CancelledError)
        # The first one sends for all: only the end of its loop cancels it.
        others = asyncio.CancelledError if who == 0 else TxnResponse
        assert [type(one) for one in ended] == [others, others]
        assert (await group.transact(put_if(keys[3], 0, b"ours"))).succeeded


async def test_groups_are_short(etcd_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In number, and in bytes."""
    monkeypatch.setattr(group_commit, "MOST_TOGETHER", 4)
    monkeypatch.setattr(group_commit, "BYTES_TOGETHER", 2000)
    async with connect(etcd_url) as locks:
        client = client_of(locks)
        spy = Spy(client, monkeypatch)
        group = GroupCommit(client)
        for size, sizes in ((1, [1, 4, 4]), (700, [1, 2, 2, 2, 2]), (3000, [1] * 9)):
            requests = [put_if(key, 0, b"x" * size) for key in keys_for(etcd_url, 9)]
            await asyncio.gather(*map(group.transact, requests))
            assert sorted(spy.sizes) == sizes
            spy.sizes.clear()


async def test_renewals_share_a_request(
    etcd_server: SharedEtcd, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a lock that is held by nobody any more, too."""
    async with connect(etcd_url, lease=30) as locks:
        store = store_of(locks)
        held = [await locks.mutex("order", n).acquire() for n in range(20)]
        batch = []
        for n in range(20):
            state = store.steps.known(resource("order", n))
            assert state is not None
            assert state.record is not None
            ticket = state.record.grants[0].ticket
            batch.append(Renewal(resource("order", n), ticket, LEASE))
        folder = etcd_url.rpartition("/")[2]
        etcd_server.ctl("del", "--prefix", f"/{folder}/order,7")
        sizes: list[int] = []
        send = GroupCommit._send

        async def sent(group: GroupCommit, requests: list[bytes]) -> Any:  # noqa: ANN401
            sizes.append(len(requests))
            return await send(group, requests)

        monkeypatch.setattr(GroupCommit, "_send", sent)
        renewer = store.renewer()
        try:
            outcomes = await asyncio.to_thread(renewer.renew, batch, 20.0)
            again = await asyncio.to_thread(renewer.renew, batch, 20.0)
        finally:
            renewer.close()
        for found in (outcomes, again):
            kinds = [type(one) for one in found]
            assert kinds == [NotHeld if n == 7 else Grant for n in range(20)]
        assert sum(sizes) >= 38
        assert len(sizes) < 20
        for number, one in enumerate(held):
            if number != 7:
                await one.release()


async def test_a_member_that_takes_few_operations(start_etcd: StartEtcd) -> None:
    """Groups get shorter until it takes them."""
    member = start_etcd(config={"max-txn-ops": "12"})
    async with connect(member.url) as locks:
        client = client_of(locks)
        with pytest.MonkeyPatch.context() as patch:
            spy = Spy(client, patch)
            group = GroupCommit(client)
            for turn in range(4):
                spy.sizes.clear()
                keys = keys_for(f"x/{turn}", 40)
                requests = [put_if(key, 0, b"x") for key in keys]
                answers = await asyncio.gather(*map(group.transact, requests))
                assert all(answer.succeeded for answer in answers)
            assert spy.sizes == [10] * 4
