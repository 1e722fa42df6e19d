"""The etcd store at real members: failover, restores, logins, TLS, limits."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CalledProcessError, run

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Held,
    LockError,
    Locks,
    Unsupported,
    connect,
)
from tests.servers.certificates import Certificates
from tests.servers.etcd import Etcd, EtcdRing, etcdctl_program
from tests.servers.fix_etcd import SharedEtcd, StartEtcd, StartEtcdRing
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "the bridge to trio is the library's own"),
]
LONG = 30.0
SECRET = "p4ss-w0rd"  # noqa: S105 - it is to be looked for


async def taken(locks: Locks, number: int, seconds: float = LONG) -> int:
    """Take a lock and release it, asking anew while the store is away."""
    with anyio.fail_after(seconds):
        while True:
            try:
                async with locks.mutex("order", number).acquire(timeout=5) as held:
                    return held.fence
            except LockError:
                await anyio.sleep(0.05)


async def test_a_member_that_is_not_there_is_passed_over(
    etcd_server: SharedEtcd,
) -> None:
    nobody = f"{IP}:{free_port()}"
    url = f"etcd://{nobody},{etcd_server.address}/passed"
    async with connect(url) as locks:
        assert await taken(locks, 1) > 0
        assert etcd_server.address in locks.statistics().connections["etcd"]


async def test_nobody_is_there() -> None:
    nobody = f"{IP}:{free_port()}"
    with pytest.raises(BackendUnavailable) as refused:
        await connect(f"etcd://u:{SECRET}@{nobody}", connect_timeout=1)
    assert nobody in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.nothing_done


async def test_a_stopped_member_is_left(start_etcd_ring: StartEtcdRing) -> None:
    """One that is connected, and says nothing any more."""
    ring = start_etcd_ring()
    url = f"{ring.url}?request_timeout=0.7"
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        first = member_of(ring, locks)
        first.pause()
        try:
            assert await taken(locks, 2) > held.fence
            assert member_of(ring, locks) is not first
            held.check()
        finally:
            first.resume()


async def test_the_leader_is_killed(start_etcd_ring: StartEtcdRing) -> None:
    """No grant is forgotten: the fence of the next one is higher, and comes later."""
    ring = start_etcd_ring()
    async with connect(ring.url) as locks, connect(ring.url) as others:
        async with locks.mutex("order", 1, lease=20) as held:
            leader = ring.leader
            leader.kill()
            assert await taken(others, 2) > held.fence
            assert await others.mutex("order", 1).try_acquire() is None
            held.check()
        assert await taken(others, 1) > held.fence
        leader.start()
        assert await taken(locks, 1) > held.fence


async def test_two_of_three_are_away(start_etcd_ring: StartEtcdRing) -> None:
    """A clear error in time; nothing is granted; what was held is kept after it."""
    ring = start_etcd_ring()
    url = f"{ring.url}?request_timeout=0.7"
    async with connect(url) as locks, locks.mutex("order", 1, lease=60) as held:
        for member in ring.members[:2]:
            member.kill()
        with anyio.fail_after(LONG), pytest.raises((LockError, TimeoutError)):
            await locks.mutex("order", 2).acquire(timeout=2)
        with pytest.raises(BackendUnavailable):
            await connect(ring.url, connect_timeout=2)
        for member in ring.members[:2]:
            member.launch()
        for member in ring.members[:2]:
            member.wait()
        assert await taken(locks, 2) > held.fence
        held.check()
        assert [seen.resource_id async for seen in locks.list()] == ["1"]


async def test_a_restored_cluster_is_refused(
    start_etcd: StartEtcd, tmp_path: Path
) -> None:
    """Its revisions repeat: what this client knows may be another version there."""
    member = start_etcd()
    async with connect(member.url) as locks:
        first = await taken(locks, 1)
        saved = tmp_path / "saved"
        member.ctl("snapshot", "save", str(saved))
        await taken(locks, 1)
        member.kill()
        restore(member, saved)
        member.start()
        await anyio.sleep(0.2)  # the loop sees that the connection is gone
        with pytest.raises(Unsupported, match="another cluster than before"):
            await locks.mutex("order", 1).acquire(timeout=0)
    async with connect(member.url) as locks:
        # The revisions that were used since the snapshot are used again.
        assert await taken(locks, 1) > first


def restore(member: Etcd, saved: Path) -> None:
    shutil.rmtree(member.folder / "data")
    peer = next(o for o in member.command() if "--initial-cluster=" in str(o))
    own = next(o for o in member.command() if "--initial-advertise" in str(o))
    options = [str(peer), str(own), "--name=n1", "--initial-cluster-token=restored"]
    where = f"--data-dir={member.folder / 'data'}"
    command = [etcdctl_program(), "snapshot", "restore", str(saved), where, *options]
    run(command, check=True, capture_output=True)


async def test_logins(start_etcd: StartEtcd, caplog: pytest.LogCaptureFixture) -> None:
    """A role that has one folder; a token that ends is got anew."""
    member = start_etcd(config={"auth-token-ttl": "2"})
    for words in (
        f"user add root:{SECRET}",
        "user grant-role root root",
        f"user add app:{SECRET}",
        "role add locks",
        "role grant-permission --prefix=true locks readwrite /app/",
        "user grant-role app locks",
        "auth enable",
    ):
        member.ctl(*words.split())
    at = member.address
    caplog.set_level("DEBUG")
    async with connect(f"etcd://app:{SECRET}@{at}/app") as locks:
        before = await taken(locks, 1)
        async with locks.mutex("order", 2):
            await anyio.sleep(4)  # longer than the token
            assert await taken(locks, 1) > before
        found = [d async for d in locks.list()]
        assert found == []
        names = {f.name: f.rating async for f in locks.examine()}
        assert names["login"] == "good"
        # Of the user root alone in newer versions: 3.5.30, not 3.5.16.
        assert names[f"member {at}"] in {"note", "good"}
    bad = {
        f"etcd://app:wrong{SECRET}@{at}/app": "authentication failed",
        f"etcd://{at}/app": "user name is empty",
        f"etcd://app:{SECRET}@{at}/elsewhere": "permission denied",
    }
    for url, why in bad.items():
        with pytest.raises(Unsupported, match=why) as refused:
            await connect(url, connect_timeout=3)
        assert SECRET not in str(refused.value)
        assert refused.value.nothing_done
    assert SECRET not in caplog.text


async def test_tls(start_etcd: StartEtcd, certificates: Certificates) -> None:
    member = start_etcd(certificates=certificates, config={"client-cert-auth": "true"})
    async with connect(member.tls_url) as locks:
        assert await taken(locks, 1) > 0
    plain = f"etcds://localhost:{member.port}?ca_file={certificates.authority}"
    for url in (plain, member.tls_url.replace("localhost", IP), member.url):
        with pytest.raises((BackendUnavailable, Unsupported)):
            await connect(url, connect_timeout=3)
    wrong_name = member.tls_url.replace("localhost", IP)
    async with connect(f"{wrong_name}&verify=chain") as locks:
        assert await taken(locks, 1) > 0
    with pytest.raises(Unsupported, match="certificate is not trusted"):
        await connect(f"etcds://localhost:{member.port}", connect_timeout=3)


async def test_a_record_that_is_too_large_is_refused(start_etcd: StartEtcd) -> None:
    """And changes nothing."""
    member = start_etcd(config={"max-request-bytes": "4096"})
    async with connect(member.url) as locks:
        lock = locks.rwlock("catalog", 7).reader
        held: list[Held] = []

        async def hold_one_more() -> None:
            held.append(await lock.acquire(reason="x" * 200))

        with pytest.raises(Unsupported, match="request is too large"):
            for _ in range(100):
                await asyncio.create_task(hold_one_more())
        assert len((await lock.info()).holders) == len(held) > 3
        for each in held:
            await each.release()
        assert await taken(locks, 1) > 0


async def test_the_alarm_of_a_full_disk(start_etcd: StartEtcd) -> None:
    member = start_etcd(config={"quota-backend-bytes": str(2**20)})
    async with connect(member.url) as locks:
        await taken(locks, 1)
        with pytest.raises(CalledProcessError):
            for _ in range(10):
                member.ctl("put", "filler", stdin="x" * 2**18)
        # The transaction that passes the limit is answered so, too, and carried out.
        with pytest.raises(AcquireUncertain) as uncertain:
            await locks.mutex("order", 1).acquire(timeout=0)
        assert "space exceeded" in str(uncertain.value.__cause__)
        found = [f async for f in examined(member.url)]
        assert ("alarms", "NOSPACE", "bad") in found
        revision = json.loads(member.ctl("get", "x", "--write-out=json"))
        member.ctl("compact", str(revision["header"]["revision"]))
        member.ctl("defrag")
        member.ctl("alarm", "disarm")
        assert (await locks.mutex("order", 1).info()).holders == ()
        assert await taken(locks, 1) > 0


@pytest.mark.parametrize("behind", [0.0, 7.0])
async def test_the_wall_clock_of_a_member_is_compared(
    start_etcd: StartEtcd,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    behind: float,
) -> None:
    """It ends no lease; but this host's should agree with somebody's."""
    member = start_etcd(certificates=certificates, config={"client-cert-auth": "true"})
    async with connect(member.tls_url) as locks:
        clock = locks._session.client.store.event_loop.clock
        monkeypatch.setattr(clock, "wall", lambda: time.time() - behind)
        (found,) = [each async for each in locks.examine() if each.name == "clock"]
    difference = re.fullmatch(r"that of (\S+) is ([+-]\d+) s from ours", found.value)
    assert difference is not None
    assert difference[1] == f"localhost:{member.port}"
    assert abs(int(difference[2]) - behind) <= 1
    assert found.rating == ("note" if behind else "good")


async def examined(url: str) -> AsyncIterator[tuple[str, str, str]]:
    async with connect(url) as locks:
        async for each in locks.examine():
            yield each.name, each.value, each.rating


def member_of(ring: EtcdRing, locks: Locks) -> Etcd:
    said = locks.statistics().connections["etcd"]
    return next(member for member in ring.members if member.address in said)
