"""The stored form of a doorman."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core import codec
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Release,
    Renew,
    Upgrade,
)
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    PendingUpgrade,
    QueueEntry,
    Requester,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import LOCK_MODES
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.locks.info import lock_info
from aiorwlock_remote.ports import Snapshot
from tests.core.resource import LEASE, READ, WRITE, OneLock, ask

SECRET = "hunter2"  # noqa: S105 - looked for where it must not be


def full() -> Doorman:
    """A doorman with a value in every field."""
    lock = OneLock()
    lock.ask("r1", READ, lock_delay=5)
    lock.ask("r2", READ, lease=None)
    lock.do(Upgrade("r1", Claim("u", LEASE), "r1", may_wait=True))
    lock.ask("w", WRITE, push=True)
    assert lock.record is not None
    return lock.record


def plain(record: Doorman) -> dict[str, Any]:
    """Its JSON, parsed."""
    read: dict[str, Any] = json.loads(codec.dumps(record))
    return read


def test_a_stored_doorman_is_read_back_equal() -> None:
    """A doorman is read back equal in every field."""
    record = full()
    assert codec.loads(codec.dumps(record)) == record
    assert codec.loads(codec.dumps(Doorman())) == Doorman()


def test_an_upgraded_writer_and_endings() -> None:
    """Rare fields are stored only when they are set."""
    lock = OneLock()
    lock.ask("r", READ)
    lock.do(Upgrade("r", Claim("u", LEASE), "r"))
    lock.seat = None
    lock.do(Downgrade("u", Claim("d", LEASE)))
    assert lock.record is not None
    assert lock.record.endings
    assert codec.loads(codec.dumps(lock.record)) == lock.record
    lock.do(ask("r", READ))
    lock.do(Upgrade("r", Claim("v", LEASE), "r"))
    assert codec.loads(codec.dumps(lock.record)) == lock.record


def test_unknown_fields_are_kept() -> None:
    """A newer version in another process must find its fields again."""
    data = plain(full())
    data["news"] = {"a": [1]}
    data["grants"][0]["color"] = "red"
    data["queue"][0]["rank"] = None
    again = plain(codec.load(data))
    assert again == data
    lock = OneLock()
    lock.record = codec.load({**plain(Doorman()), "news": 1})
    lock.ask("w", WRITE)
    assert plain(lock.record)["news"] == 1, "also through a step"


WORDS = st.text(st.characters(), max_size=8)
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1)
WHO = st.builds(Requester, WORDS, NUMBERS, WORDS, WORDS)
EXTRA = st.sampled_from([(), (("news", {"a": [1, None, "x"]}), ("color", "ré\ud800"))])
GRANTS = st.builds(
    Grant,
    *(WORDS, st.sampled_from(LOCK_MODES), NUMBERS, NUMBERS, st.none() | NUMBERS, WHO),
    NUMBERS,
    extra=EXTRA,
)
PLACES = st.builds(
    QueueEntry,
    *(NUMBERS, WORDS, st.sampled_from(LOCK_MODES), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    *(st.none() | NUMBERS, WHO),
    extra=EXTRA,
)
CLAIMS = st.tuples(st.text(st.characters(), min_size=1), st.integers(1, 2**63 - 1))
WAITING = st.builds(
    lambda entry, claim: (
        replace(entry, ticket=claim[0], lease=claim[1])
        if claim and entry.mode is WRITE
        else entry
    ),
    PLACES,
    st.none() | CLAIMS,
)
READERS = st.lists(GRANTS, max_size=3, unique_by=lambda g: g.ticket).map(
    lambda grants: tuple(replace(grant, mode=READ) for grant in grants)
)
RECORDS = st.builds(
    Doorman,
    last=NUMBERS,
    grants=st.lists(GRANTS, max_size=1).map(tuple) | READERS,
    queue=st.lists(WAITING, max_size=3, unique_by=lambda p: (p.client_id, p.mode)).map(
        tuple
    ),
    seat=st.none() | WORDS,
    upgrader=st.none()
    | st.builds(PendingUpgrade, WORDS, WORDS, NUMBERS, st.booleans()),
    upgraded=st.booleans(),
    endings=st.lists(st.builds(LossNote, NUMBERS, WORDS, st.just("stolen"))).map(tuple),
    updated=NUMBERS,
    extra=EXTRA,
).flatmap(
    lambda record: st.booleans().map(
        lambda pushed: replace(record, pushed=pushed and record.writing)
    )
)


@given(RECORDS)
def test_the_text_is_what_an_encoder_would_write(record: Doorman) -> None:
    """The text is exact: stores compare it, and other programs read it."""
    text = codec.dumps(record)
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert codec.loads(text) == record


def test_an_unknown_reason_is_read_as_forced() -> None:
    """A newer version may have more reasons."""
    data = plain(Doorman(endings=(LossNote(1, "x", "stolen"),)))
    data["endings"] = [[1, "x", "melted"]]
    assert codec.load(data).endings == (LossNote(1, "x", "forced"),)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_version_is_refused(version: object) -> None:
    """The error has a hint what to do."""
    with pytest.raises(BadRecord, match="unknown version") as caught:
        codec.load({**plain(full()), "v": version})
    assert "upgrade" in caught.value.hint


DAMAGED = [
    "",
    "x",
    "null",
    "[]",
    "5",
    '"text"',
    "{}",
    '{"v":1}',
    "[" * 100_000,
    '{"v":1,"last":' + "9" * 5000 + "}",
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_record_of_another_format_is_refused(text: str) -> None:
    """A lock that guesses would let two holders in."""
    with pytest.raises(BadRecord):
        codec.loads(text)


JUNK = st.sampled_from([None, True, -1.5, "x", [], [1], {}, {"ticket": SECRET}])


@given(st.sampled_from(sorted(plain(full()))), JUNK, st.booleans())
def test_a_damaged_field_is_refused_or_harmless(
    name: str, junk: object, missing: bool
) -> None:
    """Damage raises ``BadRecord`` only, and the error shows no ticket."""
    data: dict[str, Any] = json.loads(json.dumps(plain(full())))
    if missing:
        del data[name]
    else:
        data[name] = junk
    shown = ""
    try:
        record = codec.load(data)
    except BadRecord as exc:
        shown = repr(exc) + str(exc)
    else:
        assert codec.loads(codec.dumps(record)) == record
    assert SECRET not in shown


def nodes(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Return the path to each value in the JSON."""
    inner: list[Any] = []
    if isinstance(data, dict):
        inner = list(data.items())
    elif isinstance(data, list):
        inner = list(enumerate(data))
    found = [path] if path else []
    return found + [way for key, value in inner for way in nodes(value, (*path, key))]


COMMANDS: list[Command] = [
    *(
        Acquire((Claim("new", LEASE),), mode, client_id="g", may_queue=True)
        for mode in LOCK_MODES
    ),
    *(Release("r1"), Renew((("r1", LEASE), ("r2", LEASE)))),
    *(Upgrade("r1", Claim("new", LEASE)), Adopt("r1", Claim("new", LEASE))),
]
FIELDS = {key for way in nodes(plain(full())) for key in way if isinstance(key, str)}
JSON = st.recursive(
    st.sampled_from([None, True, -1.5, float("nan"), float("inf"), "x", "", 0, -5])
    | st.sampled_from([2**62, 2**63, 10**400, "\0", SECRET]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=2)
    ),
    max_leaves=4,
)


def read(text: str) -> tuple[Doorman | None, str]:
    """Return the doorman, or the text of the error."""
    try:
        return codec.loads(text), ""
    except BadRecord as exc:
        return None, repr(exc) + str(exc)


@settings(max_examples=60)
@given(st.sampled_from(nodes(plain(full()))), JSON, st.sampled_from(COMMANDS))
def test_any_damage_anywhere(
    path: tuple[Any, ...], junk: object, command: Command
) -> None:
    """Damage raises ``BadRecord``, or leaves a doorman that still works."""
    data = plain(full())
    there = data
    for key in path[:-1]:
        there = there[key]
    there[path[-1]] = junk
    record, message = read(json.dumps(data))
    if record is None:
        assert SECRET not in message
        assert any(name in message for name in ("JSON", "version", *FIELDS))
        return
    seat = None if record.seat is None else MutexRecord(record.seat)
    transition(record, seat, command, 10**15, 10**15)
    lock_info(Snapshot(resource("a", 1), record, seat, 10**15, 10**15))


@pytest.mark.parametrize("name", ["last", "ticket", "v"])
def test_a_name_that_is_there_twice(name: str) -> None:
    """A name that stands twice is refused, because either value may count."""
    text = codec.dumps(full()).replace(f'"{name}":', f'"{name}":1,"{name}":', 1)
    with pytest.raises(BadRecord, match=f"{name} stands in it twice"):
        codec.loads(text)


def test_a_ticket_recorded_twice_is_damage() -> None:
    data = plain(full())
    data["grants"].append(data["grants"][0])
    with pytest.raises(BadRecord, match="ticket"):
        codec.load(data)
    reader = data["grants"][0]
    data["grants"] = [reader, {**reader, "ticket": "w", "mode": "write"}]
    with pytest.raises(BadRecord, match="a writer beside other holders"):
        codec.load(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lease": 0}, "a ticket without a lease"),
        ({"lease": -5}, "a ticket without a lease"),
        ({"ticket": "", "lease": 5}, "a lease without a ticket"),
        ({"mode": "read", "gate": "other"}, "a reader's ticket"),
    ],
)
def test_a_claim_that_no_step_can_push(change: dict[str, object], said: str) -> None:
    """Half a claim, or a reader's: pushed, it would be a grant nobody asked for."""
    data = plain(full())
    data["queue"][0] = {**data["queue"][0], **change}
    with pytest.raises(BadRecord, match=said) as caught:
        codec.load(data)
    assert "w" not in caught.value.what.split()


def test_a_pushed_grant_is_a_writers() -> None:
    data = plain(full())
    data["pushed"] = True
    with pytest.raises(BadRecord, match="there is no writer"):
        codec.load(data)
    data["pushed"] = 1
    with pytest.raises(BadRecord, match="pushed: int instead of bool"):
        codec.load(data)


def test_a_damaged_grant_tells_no_ticket() -> None:
    """The error shows no ticket although the value that does not fit is one."""
    data = plain(full())
    data["grants"][0]["expires"] = SECRET
    with pytest.raises(BadRecord) as caught:
        codec.load(data)
    assert SECRET not in repr(caught.value) + str(caught.value)
