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
from tests.cas.lossy_clients import CLIENT_ID, LEASE, NOTHING, Party, SharedRow, write


def test_uncontended_each_step_is_one_request() -> None:
    row = SharedRow()
    party = Party(row)
    for number in range(3):
        granted = party.do(write(f"t{number}"))
        assert granted.grants[0].fence == row.ballot
        assert party.asked == ["swap"]
        row.now += 10
        (renewed,) = party.do(Renew(((f"t{number}", LEASE),))).outcomes
        assert renewed.fence == granted.grants[0].fence
        assert party.asked == ["swap"]
        assert party.do(Release(f"t{number}")).held
        assert party.asked == ["swap"]
        assert row.state == NOTHING


def test_a_refused_step_goes_on_from_what_it_was_told() -> None:
    row = SharedRow()
    one, two = Party(row), Party(row)
    one.do(write("t1"))
    assert isinstance(two.do(write("t2")), Refused)
    assert two.asked == ["swap"]
    one.do(Release("t1"))
    assert isinstance(two.do(write("t2")), Granted)  # from the old one: refused once
    assert two.asked in (["load", "swap"], ["swap", "swap"])


def test_a_client_with_a_claim_is_woken() -> None:
    party = Party(SharedRow())
    party.do(write("t1"))
    party.do(
        write(
            "t2",
            client_id=CLIENT_ID,
            may_queue=True,
            entry_ttl=LEASE,
            claim_window=LEASE,
        )
    )
    assert party.woken == []
    party.do(Release("t1"))
    assert party.woken == [(CLIENT_ID,)]


def test_no_answer_is_given_from_memory() -> None:
    row = SharedRow()
    one, two = Party(row), Party(row)
    one.do(write("t1"))
    two.do(write("t2"))
    one.do(Release("t1"))
    two.asked.clear()
    assert two.do(Withdraw(CLIENT_ID, Mode.WRITE, ("t2",))) == Withdrawn(())
    assert two.asked[:1] == ["load"] or two.asked == []
    assert one.do(Release("t1")).held is False


@pytest.mark.parametrize("lost", [False, True])
def test_a_refusal_without_visible_reason_is_reported(lost: bool) -> None:
    """A trigger, a policy on rows: it would ask for ever, and closing wait for it."""
    row = SharedRow()
    party = Party(row)
    if lost:
        party.cas.fates = ["late"]
        with pytest.raises(BackendUnavailable):
            party.do(write("t1"))
    row.refuses = True
    with pytest.raises(BackendUnavailable, match="the row did not change") as caught:
        party.do(write("t1"))
    assert caught.value.nothing_done is not lost
    row.refuses = False
    assert isinstance(party.do(write("t2")), Granted)


def test_a_swap_refused_for_a_reason_is_not_counted() -> None:
    """Another one swapped in between: the count begins anew."""

    class NoRandom(Random):
        def random(self) -> float:
            return 0.5  # each refusal tells what stands there

    row = SharedRow(random=NoRandom(), refuses=True)
    party = Party(row)
    pending = party.begin(write("t1"))
    for _ in range(stepper.MAX_UNCHANGED_REFUSALS - 1):
        party.cas.todo.pop(0)()
    row.state = StoredState(None, None, 1)
    party.cas.run()
    assert party.asked == ["swap"] * (
        stepper.MAX_UNCHANGED_REFUSALS - 1 + 1 + stepper.MAX_UNCHANGED_REFUSALS
    )
    assert isinstance(pending.error, BackendUnavailable)


def test_commands_for_one_resource_keep_their_order() -> None:
    party = Party(SharedRow())
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


def test_an_illegal_command_is_reported_after_a_read() -> None:
    row = SharedRow()
    party = Party(row)
    party.do(Acquire((Claim("t1", LEASE),), Mode.READ))
    party.asked.clear()
    with pytest.raises(IllegalCommand):
        party.do(Downgrade("t1", Claim("t2", LEASE)))


@pytest.mark.parametrize("where", ["times", "swap"])
def test_a_defect_is_told_and_the_next_one_has_its_turn(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = SharedRow()
    party = Party(row)

    def broken(*_: object) -> Any:  # noqa: ANN401
        monkeypatch.undo()
        raise TypeError(where)

    monkeypatch.setattr(party.cas, where, broken)
    spoilt, fine = party.begin(write("t1")), party.begin(write("t2"))
    party.cas.run()
    with pytest.raises(TypeError, match=where):
        spoilt.result()
    assert isinstance(fine.result(), Granted)


def test_replies_agree_with_the_stored_state() -> None:
    """Two parties, lost and late requests: whoever got a granted reply holds alone."""
    grants = failures = ghosts = 0
    for seed in range(200):
        row = SharedRow(random=Random(seed))
        parties = [Party(row, trouble=0.2), Party(row, trouble=0.2)]
        held: dict[int, str] = {}
        fences: list[int] = []
        for number in range(60):
            row.now += row.random.randrange(LEASE // 50)
            which = row.random.randrange(2)
            party, ticket = parties[which], held.get(which, f"t{number}")
            acquiring = which not in held
            pending = party.begin(write(ticket) if acquiring else Release(ticket))
            party.cas.run()
            if pending.error is not None:  # resolved, as the runtime does
                failures += 1
                trouble, party.cas.trouble = party.cas.trouble, 0.0
                party.do(Withdraw(CLIENT_ID, Mode.WRITE, (ticket,)))
                party.cas.trouble = trouble
                held.pop(which, None)
                left = row.state.record
                assert left is None or left.grant(ticket) is None
            elif isinstance(reply := pending.result(), Granted):
                grants += 1
                fences.append(reply.grants[0].fence)
                held[which] = ticket
                assert row.state.record is not None
                assert row.state.record.grant(ticket) == reply.grants[0]
                assert all(
                    row.state.record.grant(other) is None
                    for at, other in held.items()
                    if at != which
                )
            elif isinstance(reply, Released):
                held.pop(which, None)
            if row.late and row.random.random() < 0.3:
                ghosts += bool(row.late.pop()())
        assert fences == sorted(set(fences))
    assert grants > 1000
    assert failures > 500
    # Absence comes again, after the burn: then a ghost is a grant that nobody uses.
    assert 0 < ghosts < grants / 20
