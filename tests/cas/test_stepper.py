"""Steps out of compare-and-set; at the end, with requests and answers that get lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import CasContention, StoredState, stepper
from aiorwlock_remote.cas import backoff as module
from aiorwlock_remote.cas.backoff import (
    MAX_ENTERING_PAUSE,
    MAX_PAUSE,
    CasBackoff,
    longest_pause,
)
from aiorwlock_remote.cas.stepper import MAX_CONTENTION_RETRIES
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
    Waiting,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Doorman, QueueEntry
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import (
    CLIENT_ID,
    LEASE,
    NOTHING,
    ORDER,
    Party,
    SharedRow,
    write,
)


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


def test_a_refused_step_goes_on_from_the_state_in_the_reply() -> None:
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
def test_a_defect_is_raised_and_the_next_one_has_its_turn(
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


# ------------------------------------------------------------------------------
# Whoever was refused: at once, then after a pause, from what stands there by then.


RELEASE = Release("t1")


class Reads:
    """Reads return at once; pauses end when the test says so."""

    def __init__(self) -> None:
        self.fails = False
        self.pauses: list[tuple[float, Callable[[], None]]] = []
        self.results: list[StoredState | None] = []

    def read(self, _: Resource) -> Pending[StoredState]:
        read: Pending[StoredState] = Pending()
        if self.fails:
            read.set_exception(BackendUnavailable(what="not connected"))
        else:
            read.set_result(NOTHING)
        return read

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        self.pauses.append((seconds, function))


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance has it that each pause is as long as it may be."""
    monkeypatch.setattr(module, "random", lambda: 1.0)


@pytest.mark.usefixtures("longest")
def test_twice_at_once_then_longer_each_time_up_to_a_limit() -> None:
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    for refusals in range(1, 3):
        pausing(ORDER, MAX_PAUSE, refusals, reads.results.append)
    assert reads.results == [None, None]
    assert reads.pauses == []
    for refusals in (*range(3, 21, 3), 10_002):
        pausing(ORDER, MAX_PAUSE, refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]


def test_a_pause_is_followed_by_several_attempts() -> None:
    """Else processes that hand over without a pause would keep another one out."""
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    paused = []
    for refusals in range(1, 12):
        before = len(reads.pauses)
        pausing(ORDER, MAX_PAUSE, refusals, reads.results.append)
        paused += [refusals] * (len(reads.pauses) - before)
    assert paused == [3, 6, 9]
    assert reads.results == [None] * 8


@pytest.mark.usefixtures("longest")
def test_entering_pauses_grow_longer() -> None:
    """Processes that want one lock at once back off; a holder leaves."""
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    for refusals in (18, 24, 30, 10_002):
        pausing(ORDER, MAX_ENTERING_PAUSE, refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.128, 0.512, 1.0, 1.0]


def test_the_nearer_its_turn_the_shorter_the_pauses_of_a_waiter() -> None:
    """Without an entry they are the longest, and a holder's are the shortest."""
    queue = tuple(
        QueueEntry(number, f"client{number}", Mode.WRITE, 0, 10**9, 10**6)
        for number in range(60)
    )
    state = replace(NOTHING, record=Doorman(queue=queue))

    def longest(client_id: str) -> float:
        claims = (Claim("t1", 10**7),)
        command = Acquire(claims, Mode.WRITE, client_id=client_id, may_queue=True)
        return longest_pause(command, state)

    assert longest("client0") == longest("client16") == MAX_PAUSE
    assert MAX_PAUSE < longest("client30") < longest("client59") < MAX_ENTERING_PAUSE
    assert longest("another") == MAX_ENTERING_PAUSE
    assert longest_pause(RELEASE, state) == MAX_PAUSE


@pytest.mark.parametrize("fails", [False, True])
def test_a_retry_uses_the_state_read_after_the_pause(fails: bool) -> None:
    reads = Reads()
    CasBackoff(reads.read, reads.later)(ORDER, MAX_PAUSE, 3, reads.results.append)
    assert reads.results == []
    reads.fails = fails
    (_, ends), *_ = reads.pauses
    ends()
    assert reads.results == [None if fails else NOTHING]


# --------- One swap whose request or answer was lost, or that the store gave up


def test_a_lost_swap_from_a_version_is_burnt_before_an_answer() -> None:
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["late"]
    lost = party.begin(Renew((("t1", 9 * LEASE),)))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    assert party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("other",))) == Withdrawn(())
    before = row.state
    for ghost in row.late:
        assert not ghost()
    assert row.state == before


def test_once_it_is_burnt_each_step_is_one_request_again() -> None:
    party = Party(SharedRow())
    party.do(write("t1"))
    party.cas.fates = ["late"]
    lost = party.begin(Renew((("t1", 9 * LEASE),)))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    party.do(Renew((("t1", 9 * LEASE),)))
    party.asked.clear()
    assert party.do(Release("t1")).held
    assert party.asked == ["swap"]


@pytest.mark.parametrize("carried", [False, True])
def test_a_grant_that_seemed_lost_is_as_old_as_its_request(carried: bool) -> None:
    row = SharedRow()
    party = Party(row)
    command: Acquire | Release = write("t2")
    if carried:
        party.do(write("t1"))
        command = Release("t1", then=(write("t2"),))
    party.cas.fates = ["done"]
    sent = row.now
    lost = party.begin(command)
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    row.now += LEASE // 2
    party.cas.slow = LEASE // 2  # the store's frame does not know of that time
    granted = party.do(write("t2"))
    assert granted.grants[0].since == sent
    assert granted.now - granted.grants[0].since == LEASE // 2
    party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("t2",)))
    fresh = party.do(write("t3"))
    assert fresh.now == fresh.grants[0].since


@pytest.mark.parametrize("fate", ["late", "never"])
def test_a_grant_is_no_older_for_a_request_that_came_to_nothing(fate: str) -> None:
    """Who waited for longer than its lease would lose its turn for it."""
    row = SharedRow()
    one, two = Party(row), Party(row)
    one.do(write("t1"))
    waiting = write("t2", client_id=CLIENT_ID, may_queue=True, entry_ttl=99 * LEASE)
    assert isinstance(two.do(waiting), Waiting)
    two.cas.fates = [fate]
    lost = two.begin(replace(waiting, waiting=2))
    two.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    row.now += LEASE // 2
    assert isinstance(two.do(waiting), Waiting)
    assert one.do(Release("t1")).held
    row.now += 2 * LEASE
    granted = two.do(waiting)
    assert granted.now == granted.grants[0].since == row.now


@pytest.mark.parametrize("fate", ["gave up", "gave up, done", "gave up, late"])
def test_an_abandoned_swap_is_repeated(fate: str) -> None:
    row = SharedRow()
    party = Party(row)
    party.cas.fates = [fate]
    granted = party.do(write("t1"))
    assert row.state.record is not None
    assert row.state.record.grants == granted.grants
    assert party.asked[:2] == ["swap", "load"]  # what became of it is seen first
    row.now += 10
    party.cas.fates = [fate]
    (renewed,) = party.do(Renew((("t1", LEASE),))).outcomes
    assert renewed.fence == granted.grants[0].fence
    assert not any(ghost() for ghost in row.late)
    assert party.do(Release("t1")).held


def test_a_swap_refused_too_often_is_reported() -> None:
    party = Party(SharedRow())
    party.cas.fates = ["gave up"] * MAX_CONTENTION_RETRIES
    pending = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(pending.error, CasContention)
    assert not party.cas.fates
    assert isinstance(party.do(write("t1")), Granted)


@pytest.mark.parametrize("after", ["swap", "load"])
def test_what_may_be_done_is_never_said_to_be_undone(after: str) -> None:
    """Its caller withdraws nothing: the grant would be nobody's."""
    row = SharedRow()
    party = Party(row)
    party.cas.fates = ["gave up, done" if after == "load" else "gave up, late"]
    party.cas.fates += ["gave up, undone"] * MAX_CONTENTION_RETRIES
    party.cas.loads_fail = after == "load"
    pending = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(pending.error, BackendUnavailable)
    assert not pending.error.nothing_done


def test_a_release_that_may_be_done_is_not_repeated() -> None:
    """Its second answer would be: not held."""
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["gave up, done"]
    pending = party.begin(Release("t1"))
    party.cas.run()
    assert isinstance(pending.error, BackendUnavailable)
    assert row.state == NOTHING


def test_a_release_that_was_certainly_not_done_is_repeated() -> None:
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["gave up, undone"] * (MAX_CONTENTION_RETRIES - 1)
    assert party.do(Release("t1")).held
    assert row.state == NOTHING


def test_a_lost_swap_from_nothing_is_burnt_too() -> None:
    row = SharedRow()
    party = Party(row)
    party.cas.fates = ["late"]
    lost = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    assert row.late
    assert party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("t1",))) == Withdrawn(())
    assert not any(ghost() for ghost in row.late)
    assert isinstance(party.do(write("t2")), Granted)
