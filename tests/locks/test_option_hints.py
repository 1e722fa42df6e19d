"""Hints for users who know another library's words, or mistyped ours."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from aiorwlock_remote import ConfigurationError, OnLost, OptionArgs, connect
from aiorwlock_remote.core.url import CONNECT_OPTIONS
from aiorwlock_remote.locks.options import Options


def message_for(option: str) -> str:
    """What is said about an option that there is not."""
    changes: Any = {option: 5}
    with pytest.raises(ConfigurationError) as refused:
        Options().but(changes)
    return str(refused.value)


@pytest.mark.parametrize(
    ("option", "where"),
    [
        ("reason", "acquire"),
        ("prefix", "connect"),
        ("connect_timeout", "connect"),
        ("fence_memory", "connect"),
        ("min_replicas", "connect"),
        ("observers", "connect"),
    ],
)
def test_an_option_that_belongs_elsewhere(option: str, where: str) -> None:
    assert (
        message_for(option)
        == f"unknown option {option!r}; it is an option of {where}(…)"
    )


def test_a_timeout_is_no_lease() -> None:
    """What redis-py calls one is ours to tell apart."""
    assert "acquire(timeout=…)" in message_for("timeout")
    assert "lease" in message_for("timeout")


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("blocking_timeout", "acquire(timeout=…)"),
        ("wait", "acquire(timeout=…)"),
        ("blocking", "try_acquire()"),
        ("ttl", "lease=…"),
        ("expire", "lease=…"),
    ],
)
def test_words_of_other_libraries(option: str, ours: str) -> None:
    assert message_for(option) == f"unknown option {option!r}; here it is {ours}"


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("leese", "lease"),
        ("Lease", "lease"),
        ("maxhold", "max_hold"),
        ("conect_timeout", "connect_timeout"),
    ],
)
def test_a_mistyped_one(option: str, meant: str) -> None:
    assert message_for(option) == f"unknown option {option!r}; did you mean {meant!r}?"


def test_an_unknown_option_lists_the_known_ones() -> None:
    assert "known: fair, lease, lock_delay" in message_for("nonsense")


@pytest.mark.anyio
async def test_trying_takes_no_timeout() -> None:
    timeout: Any = {"timeout": 5}
    async with connect("memory://") as locks:
        with pytest.raises(ConfigurationError, match="unknown option 'timeout'"):
            await locks.mutex("order", 42).try_acquire(**timeout)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        ("postgres", "postgresql"),
        ("postgresql+asyncpg", "postgresql"),
        ("mysql+aiomysql", "mysql"),
        ("oracle+oracledb", "oracle"),
        ("sqlite+aiosqlite", "sqlite"),
        ("valkye", "valkey"),
        ("reddis", "redis"),
    ],
)
async def test_schemes_of_others(scheme: str, meant: str) -> None:
    """SQLAlchemy's, and mistyped ones."""
    with pytest.raises(ConfigurationError) as refused:
        await connect(f"{scheme}://host/0")
    assert str(refused.value) == f"unknown store {scheme}://; did you mean {meant}://?"


def test_the_keywords_of_connect_are_known() -> None:
    named = inspect.signature(connect).parameters.keys() - {"store", "options"}
    assert named | OptionArgs.__annotations__.keys() == CONNECT_OPTIONS


@pytest.mark.anyio
@pytest.mark.parametrize("option", ["lease", "max_hold", "connect_timeout"])
async def test_options_of_locks_in_a_url(option: str) -> None:
    url = f"sqlite:///locks.db?{option}=5"
    with pytest.raises(ConfigurationError) as refused:
        await connect(url)
    assert str(refused.value) == (
        f"sqlite: unknown option {option!r} in the URL; say connect(url, {option}=…)"
    )


@pytest.mark.anyio
async def test_a_scheme_that_is_like_nothing() -> None:
    with pytest.raises(ConfigurationError, match="known: cassandra, etcd, etcds, file"):
        await connect("http://host")


@pytest.mark.anyio
async def test_locks_show_their_store() -> None:
    """Its address, and never a password."""
    async with connect(f"memory://{os.getpid()}") as locks:
        assert repr(locks) == f"<Locks memory://{os.getpid()}>"
    assert repr(locks) == f"<Locks memory://{os.getpid()} closed>"


@pytest.mark.anyio
async def test_a_held_shows_what_became_of_it() -> None:
    """One that was moved is not released: what it was moved to is held."""
    async with connect("memory://") as locks:
        writer = await locks.rwlock("order", 42).writer.acquire()
        reader = await writer.downgrade()
        of = "order/42"
        assert repr(writer) == f"<Held {of} write fence={writer.fence} moved>"
        assert repr(reader) == f"<Held {of} read fence={reader.fence} held>"
        await reader.release()
        assert repr(reader) == f"<Held {of} read fence={reader.fence} released>"


@pytest.mark.anyio
async def test_fair_is_an_option_of_a_mutex() -> None:
    """Given to a readers-writer lock it would do nothing."""
    async with connect("memory://", fair=False) as locks:
        rw = locks.rwlock("catalog", 7)
        unfair: list[Callable[[], object]] = [
            lambda: locks.rwlock("catalog", 7, fair=False),
            lambda: rw.reader.acquire(fair=False),
            lambda: rw.writer.acquire(1, fair=True),
        ]
        for make in unfair:
            with pytest.raises(
                ConfigurationError, match="an option of a mutex; policy"
            ):
                make()
        with pytest.raises(ConfigurationError, match="an option of a mutex; policy"):
            await rw.reader.try_acquire(fair=False)
        async with rw.writer, locks.mutex("order", 42).acquire(fair=True):
            pass


def test_the_hints_of_the_options_can_be_evaluated() -> None:
    """As pydantic and FastAPI do at run time."""
    assert get_type_hints(OptionArgs)["on_lost"] == OnLost
