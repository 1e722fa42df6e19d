"""MySQL's group replication: primaries that are replaced, and several at a time.

Three servers take half a minute to start on a busy machine, so these tests are run by
`nox -s servers_of_today` alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote.testing.history import now
from tests.faults.shared_store import FourWorkers, acquit
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.fix_mysql import StartGroup
from tests.servers.mysql_group import GroupMember, MysqlGroup
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.of_today("three servers"),
]


def leads(router: Proxy, group: MysqlGroup, *members: GroupMember) -> None:
    router.lead_to(group.primary(*members).port)


def test_primaries_are_replaced(
    start_group: StartGroup, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No grant is lost: a majority has it before its caller.

    The router ends no connection: to the old primary they must be left by themselves.
    """
    group = start_group()
    first, second, third = group.members
    with (
        Proxy(first.port) as router,
        WorkerPool(
            first.url.replace(str(first.port), str(router.port)), tmp_path
        ) as pool,
    ):
        workers = FourWorkers(pool)
        workers.start()
        workers.goes_on("begun")

        since = now()
        group.make_primary(second)
        router.lead_to(second.port)
        workers.goes_on("switched", since)

        since = now()
        second.kill()
        leads(router, group, first, third)
        workers.goes_on("killed", since)

        second.start()
        second.joins()
        last = group.primary(*group.members)
        others = [member for member in group.members if member is not last]
        since = now()
        last.pause()
        leads(router, group, *others)
        workers.goes_on("paused", since)
        last.resume()
        workers.takes_turns(100)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(workers.gaps, verdict.grants)


def test_each_is_a_primary(
    start_group: StartGroup, tmp_path: Path, go_judge: GoJudge
) -> None:
    """Of two changes that meet, the group rolls one back, and it is made again."""
    group = start_group(single=False)
    urls = [member.url for member in group.members]
    with WorkerPool(urls[0], tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start(urls=urls)
        workers.goes_on("begun")
        workers.takes_turns(300)
        beaten = group.members[0].beaten()
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    assert beaten
    print(workers.gaps, verdict.grants, beaten)
