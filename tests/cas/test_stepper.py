"""Steps out of compare-and-set; at the end, with requests and answers that get lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from aiorwlock_remote.cas import StoredState, stepper
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Downgrade,
    Granted,
    IllegalCommand,
    Refused,
    Release,
    Released,
    Renew,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import GATE, LEASE, NOTHING, Party, Shelf, write


def test_uncontended_each_step_is_one_request() -> None:
    shelf = Shelf()
    party = Party(shelf)
    for number in range(3):
        granted = party.do(write(f"t{number}"))
        assert granted.grants[0].fence == shelf.ballot
        assert party.asked == ["swap"]
        shelf.now += 10
        (renewed,) = party.do(Renew(((f"t{number}", LEASE),))).outcomes
        assert renewed.fence == granted.grants[0].fence
        assert party.asked == ["swap"]
        assert party.do(Release(f"t{number}")).held
        assert party.asked == ["swap"]
        assert shelf.state == NOTHING


def test_a_refused_step_goes_on_from_what_it_was_told() -> None:
    shelf = Shelf()
    one, two = Party(shelf), Party(shelf)
    one.do(write("t1"))
    assert isinstance(two.do(write("t2")), Refused)
    assert two.asked == ["swap"]
    one.do(Release("t1"))
    assert isinstance(two.do(write("t2")), Granted)  # from the old one: refused once
    assert two.asked in (["load", "swap"], ["swap", "swap"])


def test_who_has_something_to_claim_is_woken() -> None:
    party = Party(Shelf())
    party.do(write("t1"))
    party.do(
        write("t2", client_id=GATE, may_queue=True, entry_ttl=LEASE, claim_window=LEASE)
    )
    assert party.woken == []
    party.do(Release("t1"))
    assert party.woken == [(GATE,)]


def test_no_answer_is_given_from_memory() -> None:
    shelf = Shelf()
    one, two = Party(shelf), Party(shelf)
    one.do(write("t1"))
    two.do(write("t2"))
    one.do(Release("t1"))
    two.asked.clear()
    assert two.do(Withdraw(GATE, Mode.WRITE, ("t2",))) == Withdrawn(())
    assert two.asked[:1] == ["load"] or two.asked == []
    assert one.do(Release("t1")).held is False


@pytest.mark.parametrize("lost", [False, True])
def test_who_is_refused_for_no_reason_to_be_seen_is_told(lost: bool) -> None:
    """A trigger, a policy on rows: it would ask for ever, and closing wait for it."""
    shelf = Shelf()
    party = Party(shelf)
    if lost:
        party.cas.fates = ["late"]
        with pytest.raises(BackendUnavailable):
            party.do(write("t1"))
    shelf.refuses = True
    with pytest.raises(BackendUnavailable, match="the row did not change") as caught:
        party.do(write("t1"))
    assert caught.value.nothing_done is not lost
    shelf.refuses = False
    assert isinstance(party.do(write("t2")), Granted)


def test_who_is_refused_for_a_reason_is_not_counted_with_the_others() -> None:
    """Another one swapped in between: the count begins anew."""

    class Told(Random):
        def random(self) -> float:
            return 0.5  # each refusal tells what stands there

    shelf = Shelf(random=Told(), refuses=True)
    party = Party(shelf)
    pending = party.begin(write("t1"))
    for _ in range(stepper.MAX_UNCHANGED_REFUSALS - 1):
        party.cas.todo.pop(0)()
    shelf.state = StoredState(None, None, 1)
    party.cas.run()
    assert party.asked == ["swap"] * (
        stepper.MAX_UNCHANGED_REFUSALS - 1 + 1 + stepper.MAX_UNCHANGED_REFUSALS
    )
    assert isinstance(pending.error, BackendUnavailable)


def test_commands_for_one_resource_keep_their_order() -> None:
    party = Party(Shelf())
    answers: list[str] = []
    for name, command in (
        ("acquire", write("t1")),
        ("release", Release("t1")),
        ("again", write("t2")),
    ):
        party.begin(command).add_done_callback(
            lambda _, name=name: answers.append(name)  # type: ignore[misc]
        )
    assert party.cas.asked == ["swap"]
    party.cas.run()
    assert answers == ["acquire", "release", "again"]


def test_an_illegal_command_is_told_after_a_look() -> None:
    shelf = Shelf()
    party = Party(shelf)
    party.do(Acquire((Claim("t1", LEASE),), Mode.READ))
    party.asked.clear()
    with pytest.raises(IllegalCommand):
        party.do(Downgrade("t1", Claim("t2", LEASE)))


@pytest.mark.parametrize("where", ["times", "swap"])
def test_a_defect_is_told_and_the_next_one_has_its_turn(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    party = Party(shelf)

    def broken(*_: object) -> Any:  # noqa: ANN401
        monkeypatch.undo()
        raise TypeError(where)

    monkeypatch.setattr(party.cas, where, broken)
    spoilt, fine = party.begin(write("t1")), party.begin(write("t2"))
    party.cas.run()
    with pytest.raises(TypeError, match=where):
        spoilt.result()
    assert isinstance(fine.result(), Granted)


def test_what_is_told_is_what_is_so() -> None:
    """Two parties, lost and late requests: who is told of a grant has it, alone."""
    grants = failures = ghosts = 0
    for seed in range(200):
        shelf = Shelf(random=Random(seed))
        parties = [Party(shelf, trouble=0.2), Party(shelf, trouble=0.2)]
        held: dict[int, str] = {}
        fences: list[int] = []
        for number in range(60):
            shelf.now += shelf.random.randrange(LEASE // 50)
            which = shelf.random.randrange(2)
            party, ticket = parties[which], held.get(which, f"t{number}")
            acquiring = which not in held
            pending = party.begin(write(ticket) if acquiring else Release(ticket))
            party.cas.run()
            if pending.error is not None:  # resolved, as the runtime does
                failures += 1
                trouble, party.cas.trouble = party.cas.trouble, 0.0
                party.do(Withdraw(GATE, Mode.WRITE, (ticket,)))
                party.cas.trouble = trouble
                held.pop(which, None)
                left = shelf.state.record
                assert left is None or left.grant(ticket) is None
            elif isinstance(reply := pending.result(), Granted):
                grants += 1
                fences.append(reply.grants[0].fence)
                held[which] = ticket
                assert shelf.state.record is not None
                assert shelf.state.record.grant(ticket) == reply.grants[0]
                assert all(
                    shelf.state.record.grant(other) is None
                    for at, other in held.items()
                    if at != which
                )
            elif isinstance(reply, Released):
                held.pop(which, None)
            if shelf.late and shelf.random.random() < 0.3:
                ghosts += bool(shelf.late.pop()())
        assert fences == sorted(set(fences))
    assert grants > 1000
    assert failures > 500
    # Absence comes again, after the burn: then a ghost is a grant that nobody uses.
    assert 0 < ghosts < grants / 20
