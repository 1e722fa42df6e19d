"""URLs of etcd, and the keys of resources."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.backends.etcd.options import Options, options_of
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.url import parse

SECRET = "p4ss-w0rd"  # noqa: S105 - it is to be looked for


def options(url: str) -> Options:
    return options_of(parse(url))


def test_endpoints() -> None:
    assert options("etcd://h1").endpoints == (("h1", 2379),)
    assert options("etcd://h1:1,h2,[::1]:3").endpoints == (
        *(("h1", 1), ("h2", 2379)),
        ("::1", 3),
    )
    assert options("etcd://h1:1,[::1]:3").where == "etcd at h1:1,[::1]:3"


def test_the_folder_is_the_path() -> None:
    order = resource("order", 42)
    assert options("etcd://h").keys_of(order)[0] == b"/mutex_locks/order,42"
    keys = options("etcd://h/app/locks/").keys_of(order)
    assert keys == (
        b"/app/locks/order,42",
        b"/app/locks/order,42,doorman",
        b"/app/locks/order,42,claim",
    )


@pytest.mark.parametrize(
    "url",
    [
        "etcd://",
        "etcd://h:0",
        "etcd://h1:70000,h2",
        "etcd://h1,,h2",
        f"etcd://:{SECRET}@h",
        f"etcd://u:{SECRET}@h?lease=3",
        f"etcd://u:{SECRET}@h?ca_file=x",
        f"etcd://u:a@h1,{SECRET}:x:y",
        f"etcds://u:{SECRET}@h?key_file=x",
        f"etcd://u:{SECRET}@h?request_timeout=0",
        f"etcd://u:{SECRET}@h?clock_skew=nan",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        options(url)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value)


def test_a_password_is_not_shown() -> None:
    found = options(f"etcd://u:{SECRET}@h")
    assert found.password == SECRET
    assert SECRET not in repr(found)
    assert SECRET not in found.where


@pytest.mark.parametrize("name", ["a,b", "a/b", "42!", "ä", "%", ",doorman", ",claim"])
def test_a_key_tells_its_resource(name: str) -> None:
    """And no key of one resource is that of another one."""
    found, other = resource(name, name), resource("order", 42)
    at = options("etcd://h")
    seat, doorman, claim = at.keys_of(found)
    assert at.resource_of(seat) == (found, False)
    assert at.resource_of(doorman) == (found, True)
    assert at.resource_of(claim) is None
    assert not {seat, doorman, claim} & set(at.keys_of(other))
    start, end = at.range_of(found.type)
    assert all(start <= key < end for key in (seat, doorman, claim))


@pytest.mark.parametrize("key", [b"/mutex_locks/", b"/mutex_locks/x", b"/elsewhere/a"])
def test_other_keys_are_no_resources(key: bytes) -> None:
    assert options("etcd://h").resource_of(key) is None
