"""What the log says while a server is away: each reason once, and the end."""

from __future__ import annotations

import logging

import pytest

from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import OutageLog
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.connections import Heard, eventually, killed, linked
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

LOGGER = "aiorwlock_remote.redis"


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Event and reason of each line of ours."""
    return [
        (record.message.split()[0], getattr(record, "error", ""))
        for record in caplog.records
        if record.name == LOGGER
    ]


async def tried(link: RedisConnection, times: int) -> None:
    """So many connections failed, one after the other."""
    connector = link._connector
    goal = connector._attempts + times
    await eventually(lambda: connector._attempts >= goal, "tried again")


@pytest.mark.anyio
async def test_why_it_goes_on_failing(
    start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost, then refused, then it wants a password, then it is back."""
    caplog.set_level(logging.INFO, LOGGER)
    server: RedisServer = start_redis(config={"enable-debug-command": "yes"})
    heard = Heard()
    async with linked(server.url, heard) as link:
        await killed(server, link)
        await tried(link, 4)
        (lost, why), (away, reason) = said(caplog)
        assert (lost, away) == ("redis_lost", "redis_away")
        assert "closed" in why or "reset" in why.lower()
        assert str(server.port) in reason
        server._config["requirepass"] = "hunter2"
        server.start()
        await eventually(lambda: len(said(caplog)) == 3, "another reason")
        await tried(link, 3)
        assert said(caplog)[2:] == [("redis_away", link._connector.outage.reason)]
        assert "NOAUTH" in link._connector.outage.reason
        server._config.pop("requirepass")
        server.restart()
        await eventually(lambda: heard.reconnects == 1, "it is back")
        assert said(caplog)[-1][0] == "redis_reconnected"
        events = [event for event, _ in said(caplog)]
        assert events.count("redis_reconnected") == 1


def test_each_reason_once_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons that alternate are logged once each; the next outage logs them anew."""
    caplog.set_level(logging.INFO, LOGGER)
    outage = OutageLog("h:1")
    for _ in range(2):
        outage.note("redis_lost", BackendUnavailable(what="silent"))
        for _ in range(3):
            outage.note("redis_away", BackendUnavailable(what="refused"))
            outage.note("redis_away", BackendUnavailable(what="silent"))
            outage.note("redis_away", BackendUnavailable(what="no such host"))
        assert outage.reason == "no such host"
        outage.recovered()
        assert [event for event, _ in said(caplog)] == [
            *("redis_lost", "redis_away", "redis_away", "redis_reconnected"),
        ]
        caplog.clear()


def test_a_first_connection_was_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    """To a node of a cluster, in the background: nothing to tell unless it fails."""
    caplog.set_level(logging.INFO, LOGGER)
    outage = OutageLog("h:1")
    outage.recovered()
    assert said(caplog) == []
    outage.note("redis_away", BackendUnavailable(what="refused"))
    outage.recovered()
    assert [event for event, _ in said(caplog)] == ["redis_away", "redis_reconnected"]


def test_a_defect_is_logged_with_its_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = OutageLog("h:1")
    for _ in range(3):
        outage.note("redis_away", ZeroDivisionError("of ours"))
    (record,) = caplog.records
    assert record.exc_info is not None
