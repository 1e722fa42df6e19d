"""What records and commands are in the model."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, Grant, PendingUpgrade, QueueEntry
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.value import replace
from tests.traces.abstraction import (
    NO_TICKET,
    Abstraction,
    ModelEntry,
    ModelGrant,
    ModelRequest,
    Unmodelled,
    sample,
    unmodelled,
)
from tests.traces.history import Request, State
from tests.traces.random_histories import CLIENTS, tell
from tests.traces.tla import module_of, tla

NOW = 1_000_000
ANN, BOB = "id-of-ann", "id-of-bob"
READER = Grant("r1", Mode.READ, 700, NOW - 10, NOW + 10)
WRITER = Grant("w1", Mode.WRITE, 700, NOW - 10, NOW + 10)
ENTRY = QueueEntry(5, BOB, Mode.READ, NOW - 10, NOW + 10, 100)


def request(command: Command, before: Doorman, after: Doorman) -> Request:
    times = NOW, NOW, NOW
    return Request("ann", "story", command, *times, State(before), State(after))


def requests_of(
    command: Command, before: Doorman, after: Doorman
) -> tuple[ModelRequest, ...]:
    return Abstraction(CLIENTS).step(request(command, before, after)).requests


def acquire(ticket: str, mode: Mode = Mode.READ, **options: Any) -> Acquire:  # noqa: ANN401 - fields of an acquire
    asked = Acquire((Claim(ticket, 1),), mode, client_id=ANN, may_queue=True)
    return replace(asked, **options)


# ------------------------------------------------------------------------ states


def test_grants_have_their_owner_and_the_rank_of_their_fence() -> None:
    abstraction = Abstraction(CLIENTS)
    first = Doorman(last=700, grants=(READER,))
    abstraction.step(request(acquire("r1"), Doorman(), first))
    later = replace(WRITER, fence=9000)
    second = Doorman(last=9000, grants=(later,))
    step = abstraction.step(request(acquire("w1", Mode.WRITE), first, second))
    assert step.seen.grants == {ModelGrant("ann", "W", ("ann", 2), 2)}
    assert step.seen.last == 2


def test_a_doorman_that_is_not_stored_has_the_last_fence() -> None:
    """The store gives the next one by its clock; the model counts on."""
    abstraction, nothing = Abstraction(CLIENTS), Doorman()
    held = Doorman(last=700, grants=(READER,))
    abstraction.step(request(acquire("r1"), nothing, held))
    assert abstraction.step(request(Release("r1"), held, nothing)).seen.last == 1
    later = Doorman(last=9000, grants=(replace(READER, fence=9000),))
    assert abstraction.step(request(acquire("r1"), nothing, later)).seen.last == 2


@pytest.mark.parametrize(
    ("entry", "window", "seen"),
    [
        (ENTRY, (0, 0), ModelEntry("bob", "R", admitted=False, late=False)),
        (ENTRY, (5, 0), ModelEntry("bob", "R", admitted=True, late=False)),
        (ENTRY, (4, 0), ModelEntry("bob", "R", admitted=False, late=False)),
        (ENTRY, (5, NOW + 1), ModelEntry("bob", "R", admitted=True, late=False)),
        (ENTRY, (5, NOW), ModelEntry("bob", "R", admitted=False, late=False)),
        (
            replace(ENTRY, claim_until=NOW),
            (5, NOW),
            ModelEntry("bob", "R", admitted=False, late=True),
        ),
        (
            replace(ENTRY, mode=Mode.WRITE, claim_until=NOW + 1),
            (5, 0),
            ModelEntry("bob", "W", admitted=False, late=False),
        ),
        (
            replace(ENTRY, mode=Mode.WRITE, claim_until=NOW),
            (0, 0),
            ModelEntry("bob", "W", admitted=False, late=True),
        ),
    ],
)
def test_entries(entry: QueueEntry, window: tuple[int, int], seen: ModelEntry) -> None:
    doorman = Doorman(queue=(entry,), admit_upto=window[0], admit_until=window[1])
    assert Abstraction(CLIENTS).state(doorman, NOW).queue == (seen,)


def test_the_slot_is_the_client_that_waits() -> None:
    doorman = Doorman(grants=(READER,), upgrader=PendingUpgrade("r1", BOB, NOW + 1))
    assert Abstraction(CLIENTS).state(doorman, NOW).slot == {"bob"}


@pytest.mark.parametrize(
    "doorman",
    [
        Doorman(grants=(WRITER,), pushed=True),
        Doorman(grants=(replace(READER, mode=Mode.PERMIT),)),
    ],
    ids=["pushed", "permits"],
)
def test_states_that_the_model_does_not_have(doorman: Doorman) -> None:
    with pytest.raises(Unmodelled):
        Abstraction(CLIENTS).state(doorman, NOW)


# -------------------------------------------------------------------------- time


def test_records_that_have_expired_at_a_command() -> None:
    dead = replace(READER, expires=NOW)
    entries = (
        replace(ENTRY, expires=NOW),
        replace(ENTRY, number=6, mode=Mode.WRITE, claim_until=NOW),
    )
    before = Doorman(
        grants=(dead,),
        queue=entries,
        admit_upto=5,
        admit_until=NOW,
        upgrader=PendingUpgrade("r1", BOB, NOW),
    )
    step = Abstraction(CLIENTS).step(request(Renew((("r1", 1),)), before, Doorman()))
    assert {ticket[1] for ticket in step.over} == {1}
    assert step.lapsed == {("bob", "R")}
    assert step.missed == {("bob", "W")}
    assert step.shut
    assert step.given


def test_records_end_only_at_their_time() -> None:
    before = Doorman(
        grants=(READER,),
        queue=(replace(ENTRY, claim_until=NOW + 1),),
        admit_upto=5,
        admit_until=NOW + 1,
        upgrader=PendingUpgrade("r1", BOB, NOW + 1),
    )
    step = Abstraction(CLIENTS).step(request(Renew((("r1", 1),)), before, Doorman()))
    assert not any((step.over, step.lapsed, step.missed, step.shut, step.given))


# ---------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("command", "before", "after", "expected"),
    [
        (acquire("r1"), Doorman(), Doorman(grants=(READER,)), ["acquire R - r1"]),
        (
            acquire("r1"),
            Doorman(grants=(WRITER,)),
            Doorman(grants=(WRITER,), queue=(replace(ENTRY, client_id=ANN),)),
            ["acquire R - r1"],
        ),
        (
            acquire("r1", may_queue=False),
            Doorman(grants=(WRITER,)),
            Doorman(grants=(WRITER,)),
            [],
        ),
        (Release("r1"), Doorman(grants=(READER,)), Doorman(), ["release R - r1"]),
        (
            Release("r1", None, (acquire("w1", Mode.WRITE),)),
            Doorman(grants=(READER,)),
            Doorman(grants=(WRITER,)),
            ["release R - r1", "acquire W - w1"],
        ),
        (
            Withdraw(ANN, Mode.WRITE, ("w1",)),
            Doorman(),
            Doorman(),
            ["release W - w1", "leave W - -"],
        ),
        (Renew((("r1", 1),)), Doorman(grants=(READER,)), Doorman(grants=(READER,)), []),
        (
            Downgrade("w1", Claim("r1", 1)),
            Doorman(grants=(WRITER,)),
            Doorman(grants=(READER,)),
            ["down R w1 r1"],
        ),
        (
            Upgrade("r1", Claim("w1", 1), ANN, may_wait=True),
            Doorman(grants=(READER,)),
            Doorman(grants=(WRITER,)),
            ["up W r1 w1"],
        ),
        (
            Upgrade("r1", Claim("w1", 1), ANN),
            Doorman(grants=(READER,)),
            Doorman(grants=(READER,)),
            [],
        ),
        (
            Adopt("w1", Claim("w2", 1)),
            Doorman(grants=(WRITER,)),
            Doorman(grants=(replace(WRITER, ticket="w2"),)),
            ["adopt W w1 w2"],
        ),
        (
            ForceRelease("holder", 700),
            Doorman(grants=(WRITER,)),
            Doorman(),
            ["force R - w1"],
        ),
    ],
)
def test_commands(
    command: Command, before: Doorman, after: Doorman, expected: list[str]
) -> None:
    abstraction = Abstraction(CLIENTS)
    # The numbers of tickets are those of their first use.
    names = {NO_TICKET: "-"}
    found = abstraction.step(request(command, before, after)).requests
    for name in ("r1", "w1", "w2"):
        names[abstraction._ticket(name)] = name
    shown = [f"{r.op} {r.m} {names[r.old]} {names[r.new]}" for r in found]
    assert shown == expected


@pytest.mark.parametrize(
    "command",
    [
        acquire("r1", policy=Policy.BARGE),
        acquire("r1", more=1),
        acquire("w1", Mode.WRITE, confirms=True),
        acquire("r1", claims=(Claim("r1", 1), Claim("r2", 1))),
        Release("w1", Mode.READ),
        Withdraw(BOB, Mode.READ, ("r1",), keep=True),
    ],
)
def test_commands_that_the_model_does_not_have(command: Command) -> None:
    before = Doorman(grants=(WRITER,), queue=(ENTRY,))
    with pytest.raises(Unmodelled):
        requests_of(command, before, before)


def test_a_sample_ends_before_what_the_model_does_not_have() -> None:
    history = tell(1, 20)
    barge = replace(acquire("t"), policy=Policy.BARGE)
    stop = request(barge, Doorman(), Doorman())
    assert len(sample([*history, stop], CLIENTS, 60)) == 20
    assert len(sample(history, CLIENTS, 7)) == 7
    assert unmodelled([*history, stop], CLIENTS) == "policy barge (Acquire)"
    assert not unmodelled(history, CLIENTS)


# ----------------------------------------------------------------------- modules


def test_values_in_tla() -> None:
    assert tla((True, 1, "a", frozenset({2, 1}))) == '<<TRUE, 1, "a", {1, 2}>>'
    entry = ModelEntry("ann", "R", admitted=False, late=True)
    assert tla(entry) == '[g |-> "ann", m |-> "R", admitted |-> FALSE, late |-> TRUE]'
    with pytest.raises(TypeError):
        tla(None)


def test_a_module_has_its_clients_and_histories() -> None:
    steps = sample(tell(1, 20), CLIENTS, 20)
    text = module_of([steps, steps[:1]])
    assert 'Known == {"ann", "bob", "eve"}' in text
    assert text.count("over |->") == 21
