"""Negative controls: with a store that is wrong in one way, the named case fails.

A case that passes on any store proves nothing. Here each of the central ones meets a
store made to break its promise (``broken.py``), and must notice. On the same store
without the fault it passes, so that it is the fault it noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from aiorwlock_remote import LockError
from aiorwlock_remote.backends.memory import MemoryDatabase
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue
from aiorwlock_remote.core.pushed import PushedGrant, StoreTime
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.ports import StoreBase
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.testing.conformance import StoreLocation
from aiorwlock_remote.testing.conformance.cases.admin import AdminCases
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import CancellationCases
from aiorwlock_remote.testing.conformance.cases.crowd import CrowdCases
from aiorwlock_remote.testing.conformance.cases.declared import Probe
from aiorwlock_remote.testing.conformance.cases.failing import FailingCases
from aiorwlock_remote.testing.conformance.cases.fairness import FairnessCases
from aiorwlock_remote.testing.conformance.cases.fence import FenceCases
from aiorwlock_remote.testing.conformance.cases.histories import HistoryCases
from aiorwlock_remote.testing.conformance.cases.lease import (
    BlockedLoopCases,
    LeaseCases,
    LossCases,
)
from aiorwlock_remote.testing.conformance.cases.locks import MutexCases, RWLockCases
from aiorwlock_remote.testing.conformance.cases.moves import MovesCases, PassingCases
from aiorwlock_remote.testing.conformance.cases.names import OneNameOneLockCases
from aiorwlock_remote.testing.conformance.cases.permits import SemaphoreCases
from aiorwlock_remote.testing.conformance.cases.process import ProcessCases
from aiorwlock_remote.testing.conformance.cases.published import (
    PublishedCallsCases,
    SeatCases,
)
from aiorwlock_remote.testing.conformance.cases.pushed import (
    ListeningCases,
    PushedCases,
)
from aiorwlock_remote.testing.conformance.cases.waiting import WaitingCases, WakingCases
from aiorwlock_remote.testing.conformance.child import Child
from tests.conformance import broken
from tests.conformance.broken import Broken, Fault
from tests.conformance.client_cases import ClientPushedCases
from tests.conformance.multi_cases import MultiCases
from tests.conformance.stores.memory import ForeignMemoryClient, MemoryHarness
from tests.conformance.stores.sqlite import SqliteHarness

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.usefixtures("renewed_often", "own_garbage"),
    # What a broken store makes of a case is not tidy.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Case = tuple[type[Cases], str, dict[str, Any]]

CONTROLS: list[tuple[type[Fault], Case]] = [
    (broken.Everybody, (MutexCases, "test_try_acquire", {})),
    (
        broken.Everybody,
        (
            OneNameOneLockCases,
            "test_modes_exclude_each_other",
            {"holds": "mutex", "asks": "reader"},
        ),
    ),
    (
        broken.PrefixApart,
        (
            OneNameOneLockCases,
            "test_a_prefix_is_the_beginning_of_the_type",
            {"kind": "order"},
        ),
    ),
    (broken.Tangled, (MutexCases, "test_a_cycle_leaves_no_garbage", {"mode": "mutex"})),
    (
        broken.ReadersFirst,
        (FairnessCases, "test_new_readers_queue_behind_a_writer", {}),
    ),
    (broken.ReadersFirst, (FairnessCases, "test_try_acquire_does_not_overtake", {})),
    (broken.NewestFirst, (FairnessCases, "test_the_oldest_writer_is_next", {})),
    (broken.NoFence, (FenceCases, "test_write_grants_rise", {})),
    (broken.NoFence, (FenceCases, "test_rises_after_an_expiry", {})),
    (broken.CountsFences, (FenceCases, "test_starts_from_the_stores_clock", {})),
    (broken.CountsFences, (FenceCases, "test_each_phase_reads_the_stores_clock", {})),
    (broken.MovesKeepFence, (MovesCases, "test_downgrade_has_no_gap", {})),
    (broken.MovesKeepFence, (MovesCases, "test_the_only_reader_upgrades", {})),
    (
        broken.AdoptersShare,
        (PassingCases, "test_of_two_adopters_one_gets_it", {"mode": "read"}),
    ),
    (
        broken.AdoptersShare,
        (PassingCases, "test_what_the_giver_still_sends_is_stale", {}),
    ),
    (broken.AdoptersQueue, (PassingCases, "test_nobody_is_let_in_by_an_adoption", {})),
    (
        broken.AnyTicket,
        (PublishedCallsCases, "test_release_compares_the_ticket", {"kind": "mutex"}),
    ),
    (broken.AnyTicket, (RWLockCases, "test_a_reader_gone_leaves_the_others", {})),
    (broken.AnyHolder, (AdminCases, "test_force_release_spares_who_came_since", {})),
    (broken.NeverExpires, (LeaseCases, "test_expiry_lets_the_next_in", {})),
    (broken.NeverExpires, (AdminCases, "test_stale", {})),
    (broken.NoRenewal, (LeaseCases, "test_a_holder_is_kept", {})),
    (broken.NoRenewal, (BlockedLoopCases, "test_a_blocked_loop_keeps_its_locks", {})),
    (broken.NoRenewal, (LossCases, "test_loss_cancels_the_body", {"mode": "mutex"})),
    (broken.Deaf, (WakingCases, "test_a_release_wakes_the_other_process", {})),
    (broken.Deaf, (WakingCases, "test_a_release_wakes_all_readers", {})),
    (broken.Deaf, (WakingCases, "test_an_upgrader_is_woken", {})),
    (broken.Deaf, (PushedCases, "test_a_message_lets_the_waiter_in", {})),
    (
        broken.ForgetsConfirmations,
        (PushedCases, "test_a_message_lets_the_waiter_in", {}),
    ),
    (broken.NewestFirst, (PushedCases, "test_order_and_fences", {})),
    (broken.NoRenewal, (PushedCases, "test_a_renewal_confirms", {})),
    (broken.KeepsGrants, (PushedCases, "test_a_release_at_once", {})),
    (
        broken.KeepsGrants,
        (PushedCases, "test_cancelled_between_message_and_entry", {"turns": 2}),
    ),
    (broken.DeafAndBlind, (MutexCases, "test_no_timeout_waits_for_the_release", {})),
    (
        broken.KeepsPlaces,
        (
            CancellationCases,
            "test_a_cancelled_waiter_leaves_no_place",
            {"mode": "mutex"},
        ),
    ),
    (
        broken.KeepsPlaces,
        (CancellationCases, "test_cancelled_at_every_step_of_a_hand_over", {}),
    ),
    (
        broken.KeepsPlaces,
        (PassingCases, "test_adopting_cancelled_at_every_step", {}),
    ),
    (
        broken.KeepsGrants,
        (LossCases, "test_max_hold_gives_it_back", {"mode": "mutex"}),
    ),
    (
        broken.KeepsPlaces,
        (FailingCases, "test_an_acquire_that_fails_late", {"ask": "try"}),
    ),
    (
        broken.KeepsPlaces,
        (FailingCases, "test_a_move_that_fails_late", {"move": "downgrade"}),
    ),
    (
        broken.OldTicketOnly,
        (PublishedCallsCases, "test_acquire_is_idempotent", {"kind": "writer"}),
    ),
    (
        broken.TakesSeats,
        (
            SeatCases,
            "test_a_foreign_seat_keeps_us_out",
            {"mode": "mutex", "ticket": "foreign"},
        ),
    ),
    (broken.NoSeat, (SeatCases, "test_our_grant_sits_there", {"mode": "writer"})),
    (
        broken.LeavesItsSeat,
        (
            SeatCases,
            "test_our_ticket_goes_when_its_holder_learns_of_it",
            {"action": "downgrade"},
        ),
    ),
    (
        broken.LeavesItsSeat,
        (SeatCases, "test_our_ticket_goes_when_its_holder_is_not_renewed", {}),
    ),
    (broken.TakesReaders, (SeatCases, "test_readers_we_do_not_know_stay", {})),
    (
        broken.NewestFirst,
        (FairnessCases, "test_who_comes_back_at_once_goes_behind", {}),
    ),
    (broken.KeepsPlaces, (WaitingCases, "test_who_gave_up_is_in_nobodys_way", {})),
    (broken.QueuesTries, (WaitingCases, "test_who_gave_up_is_in_nobodys_way", {})),
    (broken.KeepsPlaces, (MutexCases, "test_timeout_ends_the_wait", {})),
    (broken.NewestFirst, (FailingCases, "test_a_store_that_hangs_while_two_wait", {})),
    (broken.AnyTicket, (MovesCases, "test_a_late_release_of_what_was_moved", {})),
    (
        broken.AnyTicket,
        (PublishedCallsCases, "test_a_late_second_release", {}),
    ),
    (
        broken.NoFence,
        (SeatCases, "test_all_is_deleted_under_a_holder_and_two_waiters", {}),
    ),
    (broken.TrimsNames, (OneNameOneLockCases, "test_awkward_names_stay_apart", {})),
    (broken.ExpiresLate, (LeaseCases, "test_one_expiry_after_the_other", {})),
    (broken.NewestFirst, (LeaseCases, "test_one_expiry_after_the_other", {})),
    (broken.RenewsAll, (LeaseCases, "test_each_reader_has_its_own_lease", {})),
    (broken.OneLease, (LeaseCases, "test_each_reader_has_its_own_lease", {})),
    (broken.MovesTheLost, (LossCases, "test_the_store_tells_of_the_loss", {})),
    (broken.RenewsTheLost, (LossCases, "test_the_store_tells_of_the_loss", {})),
    (broken.Everybody, (MultiCases, "test_ten_want_the_same", {})),
    (broken.Everybody, (HistoryCases, "test_random_readers_and_writers", {})),
    (broken.NoFence, (HistoryCases, "test_random_readers_and_writers", {})),
    (broken.NoRenewal, (CrowdCases, "test_fifty_readers_are_kept", {})),
    (broken.ForgetsPlaces, (CrowdCases, "test_long_waits_keep_their_places", {})),
    (
        broken.KeepsPlaces,
        (
            CrowdCases,
            "test_forty_waiters_cancelled_at_every_step_of_a_release",
            {},
        ),
    ),
    (broken.NewestFirst, (CrowdCases, "test_thirty_clients", {})),
    (broken.Everybody, (CrowdCases, "test_a_thousand_acquires_of_twenty_names", {})),
    (broken.NoLimit, (SemaphoreCases, "test_one_more_than_the_limit_waits", {})),
    (broken.NoLimit, (SemaphoreCases, "test_never_more_than_the_limit", {"seed": 1})),
    (broken.OneLimit, (SemaphoreCases, "test_the_least_limit_counts", {})),
    (broken.OnePermit, (SemaphoreCases, "test_one_request_takes_several", {})),
    (
        broken.ServedFirst,
        (SemaphoreCases, "test_who_was_served_goes_behind_others", {}),
    ),
    (broken.NewestFirst, (SemaphoreCases, "test_in_the_order_of_arrival", {})),
    (
        broken.NeverExpires,
        (SemaphoreCases, "test_a_dead_holders_permit_comes_back", {}),
    ),
    (
        broken.KeepsPlaces,
        (SemaphoreCases, "test_a_cancelled_waiter_leaves_nothing", {}),
    ),
    (
        broken.KeepsGrants,
        (SemaphoreCases, "test_cancelled_at_the_moment_of_a_release", {}),
    ),
    (broken.NoRenewal, (SemaphoreCases, "test_a_broken_holder_learns_of_it", {})),
    (broken.NoFence, (SemaphoreCases, "test_each_permit_has_its_own_fence", {})),
    (broken.AdoptersQueue, (SemaphoreCases, "test_passed_on", {})),
    (
        broken.SharedName,
        (SemaphoreCases, "test_a_lock_of_the_same_name_is_another", {}),
    ),
]
NAMED = [
    pytest.param(fault, case, id=f"{fault.__name__}-{case[1]}")
    for fault, case in CONTROLS
]


class BrokenHarness(MemoryHarness):
    """The memory store with a fault, and little patience, so that cases fail soon."""

    patience = 2.5

    def __init__(self, fault: Callable[..., StoreBase]) -> None:
        self._fault = fault

    def fresh(self, folder: Path) -> StoreLocation:
        """Return a database of its own, with a backend that has the fault."""
        del folder
        kept = MemoryDatabase()
        backend = Broken(self._fault, kept)
        return StoreLocation(
            "memory://", foreigner=ForeignMemoryClient(kept), backend=backend
        )


class PatientHarness(BrokenHarness):
    """The same, for cases in which a claim window or some leases have to pass."""

    patience = 8.0


LONG = {
    "test_a_thousand_acquires_of_twenty_names",
    "test_all_is_deleted_under_a_holder_and_two_waiters",
    "test_fifty_readers_are_kept",
    "test_long_waits_keep_their_places",
    "test_one_expiry_after_the_other",
}


async def run(
    fault: type[Fault], case: Case, folder: Path, patience: float | None = None
) -> None:
    """Run the case as pytest would, on a store with this fault.

    ``patience``: that of the harness in seconds; None: as long as most cases need.
    """
    cases, name, given = case
    if patience is None:
        patient = issubclass(cases, ListeningCases) or name in LONG
        patience = (PatientHarness if patient else BrokenHarness).patience
    harness = type("Given", (BrokenHarness,), {"patience": patience})(fault)
    controlled = type("Controlled", (cases,), {"harness": harness})()
    test = getattr(controlled, name)
    async with controlled.connected(folder):
        fixtures: dict[str, Any] = {
            "loop": ("asyncio", {}),
            "tmp_path": folder,
            "untouched": controlled.locks,
            "probe": Probe(controlled.store.site),
            **given,
        }
        wanted = list(inspect.signature(test).parameters)
        with anyio.fail_after(4 * harness.patience):
            await test(**{name: fixtures[name] for name in wanted})


async def is_noticed(
    fault: type[Fault], case: Case, folder: Path, patience: float | None = None
) -> bool:
    """Return whether the case fails on a store with this fault."""
    try:
        await run(fault, case, folder, patience)
    except (AssertionError, LockError, TimeoutError, ValueError):
        return True
    # Also a group with a failure of pytest, which is no ``Exception``.
    except (BaseExceptionGroup, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize(("fault", "case"), NAMED)
async def test_the_fault_is_noticed(
    fault: type[Fault], case: Case, tmp_path: Path
) -> None:
    assert await is_noticed(fault, case, tmp_path)


@pytest.mark.parametrize(("fault", "case"), NAMED)
async def test_the_unbroken_store_passes_each_case(
    fault: type[Fault], case: Case, tmp_path: Path
) -> None:
    assert issubclass(fault, Fault)
    await run(Fault, case, tmp_path)


def believes_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A client takes each message for true, whenever it comes."""
    failed = ModeQueue.failed

    def remembers(queue: ModeQueue, *args: Any, **kwargs: Any) -> Effects:  # noqa: ANN401
        known = queue._store_time
        effects = failed(queue, *args, **kwargs)
        queue._store_time = known
        return effects

    patch.setattr(StoreTime, "bounds", lambda *_: (1e12, 0.0))
    patch.setattr(ModeQueue, "failed", remembers)


def needs_no_proof(patch: pytest.MonkeyPatch) -> None:
    """A client takes each message for one to its own ticket."""
    patch.setattr(PushedGrant, "proves", lambda *_: True)


def needs_no_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A client counts on the whole lease, though the store has not confirmed it."""
    lease = StoreClient.lease

    def endless(
        client: StoreClient,
        request: AcquireRequest,
        grant: Grant,
        sent_at: float,
        ends: float | None = None,
    ) -> Lease:
        del ends
        return lease(client, request, grant, sent_at)

    patch.setattr(StoreClient, "lease", endless)


def tells_an_old_fence(patch: pytest.MonkeyPatch) -> None:
    """A store's messages name a fence of an earlier phase."""
    of = PushedGrant.of
    patch.setattr(PushedGrant, "of", lambda grant: of(replace(grant, fence=7)))


def waits_on(patch: pytest.MonkeyPatch) -> None:
    """A client gives up a second and more after the timeout of its caller."""
    wait = LockAcquirer._wait

    async def longer(
        acquirer: LockAcquirer, request: AcquireRequest, until: float | None
    ) -> Lease:
        return await wait(acquirer, request, None if until is None else until + 1.2)

    patch.setattr(LockAcquirer, "_wait", longer)


CLIENT_CONTROLS: list[
    tuple[Callable[[pytest.MonkeyPatch], None], type[Cases], str, Any]
] = [
    (believes_for_ever, ClientPushedCases, "test_a_late_message_lets_nobody_in", {}),
    (
        believes_for_ever,
        PushedCases,
        "test_a_waiter_that_is_stopped_after_its_message",
        {},
    ),
    (believes_for_ever, PushedCases, "test_a_holder_whose_confirmation_is_cut", {}),
    (
        needs_no_proof,
        ClientPushedCases,
        "test_a_forged_message_lets_nobody_in",
        {"proof": "none"},
    ),
    (needs_no_proof, ClientPushedCases, "test_a_doubled_message_lets_one_in", {}),
    (needs_no_proof, PushedCases, "test_a_withdrawal_races_the_message", {}),
    (needs_no_confirmation, PushedCases, "test_a_holder_whose_confirmation_is_cut", {}),
    (
        needs_no_confirmation,
        PushedCases,
        "test_a_waiter_that_is_stopped_after_its_message",
        {},
    ),
    (tells_an_old_fence, PushedCases, "test_order_and_fences", {}),
]


async def test_a_timeout_that_comes_late_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits_on(monkeypatch)
    assert await is_noticed(
        Fault, (MutexCases, "test_timeout_ends_the_wait", {}), tmp_path
    )


async def test_a_process_that_leaves_a_grant_without_end_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A killed process may do no clean-up: what it holds has to end by its lease."""
    ask = Child.ask

    async def endless(process: Child, order: str, **details: object) -> object:
        details.update({"lease": None} if "lease" in details else {})
        return await ask(process, order, **details)

    monkeypatch.setattr(Child, "ask", endless)
    harness = type("Hasty", (SqliteHarness,), {"patience": 6.0})()
    controlled = type("Controlled", (ProcessCases,), {"harness": harness})()
    async with controlled.connected(tmp_path):
        with pytest.raises(TimeoutError):
            await controlled.test_two_processes_exclude_each_other(loop=("asyncio", {}))


@pytest.mark.parametrize(
    ("break_client", "cases", "name", "given"),
    CLIENT_CONTROLS,
    ids=[f"{one.__name__}-{name}" for one, _, name, _ in CLIENT_CONTROLS],
)
async def test_the_fault_of_a_client_is_noticed(
    break_client: Callable[[pytest.MonkeyPatch], None],
    cases: type[Cases],
    name: str,
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await run(Fault, (cases, name, given), tmp_path)
    break_client(monkeypatch)
    assert await is_noticed(Fault, (cases, name, given), tmp_path)
