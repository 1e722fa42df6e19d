"""Slots of keys, and what nodes tell about them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorwlock_remote.backends.redis.cluster.slots import (
    Moved,
    SlotMap,
    hash_tag,
    key_in_same_slot,
    parse_moved,
    slot_of,
)
from aiorwlock_remote.backends.redis.keys import Keys
from aiorwlock_remote.backends.redis.recipes import SetKeys
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.ports import StoreSettings
from tests.servers.cluster import Cluster

ONE, TWO = ("10.0.0.1", 7000), ("10.0.0.2", 7000)
names = st.lists(st.sampled_from([b"{", b"}", b"a", b"b", b"\xff", b","])).map(b"".join)


@pytest.mark.slow
def test_the_same_as_the_server(redis_cluster: Cluster) -> None:
    server = redis_cluster.servers[0]

    @settings(max_examples=200)
    @given(names)
    def compare(key: bytes) -> None:
        assert slot_of(key) == server.ask("CLUSTER", "KEYSLOT", key)

    compare()


@given(st.text(min_size=1), st.one_of(st.integers(), st.text(min_size=1)))
def test_all_keys_of_a_resource_lie_in_one_slot(kind: str, name: int | str) -> None:
    count, *keys = Keys(resource(kind, name, "p:"), cluster=True).args[:6]
    assert count == len(keys) == 5
    assert len({slot_of(key) for key in keys if isinstance(key, bytes)}) == 1


@given(names.filter(lambda key: key and (hash_tag(key) != key or b"}" not in key)))
def test_a_key_beside_another(key: bytes) -> None:
    assert slot_of(key_in_same_slot(key, b".state")) == slot_of(key)
    assert key_in_same_slot(key, b".state") != key_in_same_slot(key, b".queue")


def test_a_set_whose_keys_cannot_be_kept_together() -> None:
    settings = StoreSettings("client")
    for name in ("proxies", "{eu}proxies", "proxies{eu}"):
        SetKeys(settings, name, "client", cluster=True)
    with pytest.raises(ConfigurationError, match="several slots"):
        SetKeys(settings, "a}b", "client", cluster=True)
    SetKeys(settings, "a}b", "client")  # one server has all slots


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MOVED 5 10.0.0.2:7000", Moved(5, TWO)),
        ("MOVED 5 :7001", Moved(5, ("10.0.0.1", 7001))),
        ("MOVED 5 ::1:7001", Moved(5, ("::1", 7001))),
        ("ASK 5 10.0.0.2:7000", None),
        ("MOVED 5 ?:7000", None),
        ("MOVED 99999 10.0.0.2:7000", None),
        ("MOVED 5 nonsense", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
    ],
)
def test_redirections(text: str, found: Moved | None) -> None:
    assert parse_moved(text, ONE) == found


def test_the_map() -> None:
    slots = SlotMap([ONE])
    assert slots.primaries == []
    assert slots.known == [ONE]
    # A host that is not named is the one that was asked; "?" is nowhere.
    first = [0, 8191, [None, 7000, b"a"], [b"10.0.0.3", 7000, b"b"]]
    second = [8192, 16383, [b"?", 7000, b"c"], [b"10.0.0.2", 7000, b"d"]]
    slots.learn([first, second], ONE)
    assert [slots.owners[0], slots.owners[8191]] == [ONE, ONE]
    assert [slots.owners[8192], slots.owners[16383]] == [None, None]
    assert slots.known == [ONE, ("10.0.0.3", 7000), TWO]
    slots.note(Moved(8192, TWO))
    assert slots.owners[8192] == TWO
    assert slots.primaries == [ONE, TWO]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        b"OK",
        [1],
        [[0, 5]],
        [[b"a", 5, [b"h", 1, b"i"]]],
        [[0, 99_999, [b"h", 1, b"i"]]],
        [[0, 5, [b"\xff", 1, b"i"]]],
        [[0, 5, [b"h", b"x", b"i"]]],
    ],
)
def test_an_empty_slot_map_changes_nothing(answer: object) -> None:
    """A node that was thrown out answers with an empty one."""
    slots = SlotMap([ONE])
    slots.learn([[0, 16383, [b"10.0.0.2", 7000, b"a"]]], ONE)
    with pytest.raises(BackendError, match=r"10\.0\.0\.1:7000"):
        slots.learn(answer, ONE)
    assert set(slots.owners) == {TWO}
    assert slots.known == [TWO, ONE]
