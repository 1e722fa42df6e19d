"""Each case of the suite can fail: the negative controls of all that have no other.

``test_controls.py`` has those of the central cases. Here each of the rest meets a store
(``broken.py``) or a client (``broken_client.py``) that breaks the promise it tests, and
must notice. Without the fault it passes. ``WITHOUT_CONTROL`` is the one place for cases
that can have no control, each with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote.backends.memory import MemoryStore
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.testing.conformance.cases.admin import AdminCases
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import (
    CancellationCases,
    NativeCancellationCases,
)
from aiorwlock_remote.testing.conformance.cases.close import CloseCases
from aiorwlock_remote.testing.conformance.cases.declared import DeclaredCases
from aiorwlock_remote.testing.conformance.cases.failing import FailingCases
from aiorwlock_remote.testing.conformance.cases.fairness import FairnessCases
from aiorwlock_remote.testing.conformance.cases.fence import FenceCases
from aiorwlock_remote.testing.conformance.cases.lease import LeaseCases, LossCases
from aiorwlock_remote.testing.conformance.cases.locks import MutexCases, RWLockCases
from aiorwlock_remote.testing.conformance.cases.moves import MovesCases, PassingCases
from aiorwlock_remote.testing.conformance.cases.names import OneNameOneLockCases
from aiorwlock_remote.testing.conformance.cases.permits import (
    LostPermitsCases,
    SemaphoreCases,
)
from aiorwlock_remote.testing.conformance.cases.process import ProcessCases
from aiorwlock_remote.testing.conformance.cases.published import (
    ForeignHistoryCases,
    PublishedCallsCases,
    SeatCases,
)
from aiorwlock_remote.testing.conformance.cases.pushed import ForeignPushedCases
from aiorwlock_remote.testing.conformance.cases.waiting import WaitingCases
from aiorwlock_remote.testing.conformance.suite import ALL_CASES
from tests.conformance import broken, test_controls
from tests.conformance import broken_client as client
from tests.conformance.bad_input_cases import BadInputCases
from tests.conformance.broken import Fault
from tests.conformance.broken_client import Breaks
from tests.conformance.client_cases import CLIENT_CASES, ClientCases
from tests.conformance.multi_cases import MultiCases
from tests.conformance.test_controls import is_noticed, run

Planted = type[Fault] | Breaks
Name = tuple[type[Cases], str]

pytestmark = test_controls.pytestmark

CONTROLS: dict[type[Cases], dict[str, Planted]] = {
    DeclaredCases: {
        "test_capabilities": broken.Undeclared,
        "test_the_poll_policy": broken.PollsOften,
        "test_a_connection_of_your_own": broken.Apart,
        "test_urls": client.any_url_will_do,
    },
    MutexCases: {
        "test_async_with_holds_it": broken.Apart,
        "test_await_gives_the_grant": broken.KeepsGrants,
        "test_timeout_zero_says_who_holds_it": client.a_timeout_names_nobody,
        "test_a_failing_body_releases": client.giving_back_is_forgotten,
    },
    RWLockCases: {
        "test_readers_share": broken.ReadersAlone,
        "test_a_writer_is_alone": broken.Everybody,
        "test_the_last_reader_lets_the_writer_in": broken.Everybody,
        "test_readers_wait_for_the_writer": broken.DeafAndBlind,
    },
    OneNameOneLockCases: {
        "test_modes_wait_for_each_other": broken.ModesApart,
        "test_an_id_counts_by_its_text": client.ids_count_by_their_type,
        "test_case_matters": broken.FoldsCase,
        "test_any_language": broken.ComposesLetters,
        "test_long_names": broken.CutsNames,
        "test_types_part": broken.ListsAllTypes,
        "test_prefixes_part": client.locks_have_no_prefix,
        "test_a_prefix_is_no_type": client.a_prefix_is_a_type,
    },
    FenceCases: {
        "test_a_hand_over_rises": test_controls.tells_an_old_fence,
        "test_readers_of_a_batch_share": broken.EachReaderItsFence,
        "test_each_phase_has_its_own": broken.NoFence,
        "test_rises_after_force": broken.NoFence,
        "test_outlives_the_connection": broken.NoFence,
        "test_is_shown": broken.NoFence,
    },
    LeaseCases: {
        "test_expired_readers_let_a_writer_in": broken.NeverExpires,
        "test_an_awaited_grant_is_kept": broken.NoRenewal,
        "test_without_a_lease_it_never_ends": broken.EndlessEnds,
        "test_extend": client.leases_are_believed_too_long,
        "test_no_holder_believes_too_long": client.leases_are_believed_too_long,
        "test_lock_delay": broken.NoDelay,
    },
    LossCases: {
        "test_loss_found_at_the_end": client.losses_are_swallowed,
        "test_an_awaited_grant_is_not_cancelled": broken.NoRenewal,
        "test_one_of_many_readers_is_lost": broken.ForcesAll,
    },
    WaitingCases: {
        "test_tasks_of_a_process_are_one_waiter": broken.NewestFirst,
        "test_info_shows_who_waits": client.reasons_are_hidden,
        "test_max_waiters_of_all_processes": broken.CountsNoWaiters,
    },
    FairnessCases: {
        "test_processes_take_turns": broken.NewestFirst,
        "test_after_a_writer_all_waiting_readers": broken.ReadersFirst,
        "test_nobody_starves": broken.ReadersFirst,
        "test_policy_writer": broken.AlwaysFair,
        "test_policy_reader": broken.AlwaysFair,
        "test_an_unfair_mutex_barges": broken.AlwaysFair,
        "test_who_does_not_come_blocks_nobody": broken.KeepsTheDead,
    },
    CancellationCases: {
        "test_all_waiters_cancelled_at_once": broken.KeepsPlaces,
        "test_cancelled_at_every_step": client.the_cancelled_keep_grants,
        "test_cancelled_body_releases": client.giving_back_is_forgotten,
        "test_cancelled_release_is_carried_out": client.releases_begin_with_a_wait,
        "test_move_on_after": client.a_wait_is_shielded,
    },
    NativeCancellationCases: {
        "test_task_cancel": broken.KeepsPlaces,
        "test_task_cancel_twice_at_every_step": client.the_cancelled_keep_grants,
        "test_asyncio_timeout": client.a_cancellation_is_an_error,
    },
    FailingCases: {
        "test_an_adoption_that_fails_late": broken.KeepsPlaces,
        "test_taken_back_when_the_store_lets_us": client.clean_up_is_not_repeated,
    },
    MovesCases: {
        "test_what_is_shown_of_a_moved_grant": broken.MovesForgetReasons,
        "test_try_upgrade_beside_others": broken.EveryUpgradeWaits,
        "test_upgrade_waits_for_the_others": broken.UpgradesBeside,
        "test_two_upgraders_conflict": broken.UpgradesBeside,
        "test_upgrade_times_out": broken.EveryUpgradeWaits,
        "test_a_cancelled_upgrade_leaves_no_slot": broken.KeepsPlaces,
    },
    PassingCases: {
        "test_adopt_in_another_process": broken.AdoptersShare,
        "test_adopted_is_kept": broken.NoRenewal,
        "test_adopt_after_release": broken.AdoptsTheLost,
        "test_an_adopted_reader_shares": broken.AdoptersQueue,
        "test_an_adopted_grant_is_shown": broken.MovesForgetReasons,
        "test_adopt_after_expiry": broken.AdoptsTheLost,
        "test_detached_survives_closing": client.detaching_is_forgotten,
    },
    MultiCases: {
        "test_all_are_held": client.several_come_in_reverse,
        "test_awaited": client.several_come_in_reverse,
        "test_none_is_kept_if_one_is_not_obtained": broken.KeepsGrants,
        "test_cancelled_gives_back": broken.KeepsGrants,
        "test_opposite_orders_do_not_deadlock": client.several_are_taken_as_they_come,
        "test_losing_one_ends_all": client.no_body_is_cancelled,
    },
    SemaphoreCases: {
        "test_limits_that_differ_are_logged": client.nothing_is_logged,
        "test_permits_of_one_step_have_fences_of_their_own": broken.CountsReturns,
        "test_extend_and_release": broken.KeepsGrants,
        "test_stale_permits": broken.NeverExpires,
    },
    LostPermitsCases: {
        "test_permits_without_a_doorman_keep_nobody_out": broken.KeepsPermits,
    },
    PublishedCallsCases: {
        "test_acquire_and_release": broken.Everybody,
        "test_another_mode_is_refused": broken.Everybody,
        "test_it_never_expires": broken.EndlessEnds,
        "test_readers_share": broken.ReadersAlone,
        "test_a_refused_writer_is_pending": broken.QueuesNobody,
        "test_mutex_and_readers_take_no_place": broken.QueuesTries,
        "test_they_exclude_ours": broken.KeepsGrants,
    },
    SeatCases: {
        "test_a_callers_ticket_sits_there": broken.NoSeat,
        "test_how_long_a_foreigner_sits_there": client.foreigners_came_just_now,
        "test_readers_sit_until_the_last": broken.NoSeat,
        "test_a_hand_over_keeps_the_seat": broken.NoSeat,
        "test_tickets_are_secret": client.tickets_are_shown,
        "test_a_foreign_release_lets_us_in": broken.DeafAndBlind,
        "test_a_deleted_seat_is_a_forced_loss": broken.RestoresSeats,
        "test_an_overwritten_seat_is_stolen": broken.RestoresSeats,
        "test_a_deleted_seat_never_comes_back": broken.RestoresSeats,
        "test_waiters_survive_a_deleted_seat": broken.RestoresSeats,
        "test_release_of_a_foreign_ticket": broken.ForeignersStay,
        "test_a_foreign_seat_is_shown": broken.HidesForeigners,
        "test_a_foreign_seat_is_broken_by_its_value": broken.BreaksAnySeat,
        "test_foreign_names": broken.HidesForeigners,
    },
    ForeignHistoryCases: {
        "test_another_program_between_any_two_steps": broken.RestoresSeats,
        "test_a_thief_before_a_hand_over": broken.RestoresSeats,
    },
    ForeignPushedCases: {
        "test_a_thief_before_the_confirmation": broken.RestoresSeats,
    },
    AdminCases: {
        "test_info": client.reasons_are_hidden,
        "test_info_changes_nothing": broken.LooksTake,
        "test_list": broken.ListsAllTypes,
        "test_a_list_that_is_left_early": broken.LeavesScansOpen,
        "test_an_expired_grant_is_stale": client.the_expired_are_not_stale,
        "test_force_release_lets_the_next_in": broken.DeafAndBlind,
        "test_force_release_of_some_readers": broken.ForcesAll,
        "test_a_stale_doorman_of_the_same_ticket": broken.AnyHolder,
    },
    ClientCases: {
        "test_a_timeout_lets_the_others_wait_on": client.one_task_leaves_for_all,
        "test_the_others_wait_on": client.the_newest_task_is_served,
        "test_max_hold": client.no_time_is_up,
        "test_held_describes_the_grant": client.leases_are_believed_too_long,
        "test_release_is_idempotent": client.endings_are_forgotten,
        "test_released_inside_the_body": client.endings_are_forgotten,
        "test_several_resources_at_once": client.one_lock_a_task,
        "test_a_released_grant_is_refused": client.endings_are_forgotten,
        "test_leaving_without_entering": client.leaving_is_for_all,
        "test_not_reentrant": client.an_own_task_may_wait,
        "test_one_lock_object_for_many_tasks": client.all_tasks_are_served,
        "test_both_spellings": client.the_writer_is_a_reader,
        "test_a_dropped_grant_ends": client.the_dropped_are_forgotten,
        "test_a_task_that_ended_without_release": client.ended_tasks_are_kept,
        "test_own_error_goes_first": client.losses_go_first,
        "test_own_error_while_cancelled": client.losses_go_first,
        "test_cancelled_from_outside_stays_cancelled": client.losses_go_first,
        "test_on_lost_flag": client.all_bodies_are_cancelled,
        "test_on_lost_callable": client.callbacks_are_called_twice,
        "test_guard_cancels_what_it_guards": client.a_guard_is_deaf,
        "test_guard_gives_the_result": client.guards_lose_the_result,
        "test_max_stall": client.no_time_is_up,
        "test_max_waiters_in_a_process": client.waiters_are_not_counted,
        "test_slow_wait_says_who_is_in_the_way": client.nothing_is_logged,
        "test_fifty_tasks_in_order": client.the_newest_task_is_served,
        "test_readers_and_writers_in_the_order_of_arrival": (
            client.writers_are_sent_at_once
        ),
        "test_what_was_moved_is_over": client.endings_are_forgotten,
        "test_wrong_modes": client.a_move_to_the_same_mode_is_none,
        "test_leaving_releases_the_newest": client.moves_are_forgotten,
        "test_one_resource_twice": client.several_may_be_the_same,
        "test_a_task_takes_one_permit": client.an_own_task_may_wait,
        "test_use_after_close": client.the_closed_is_used,
        "test_another_loop": client.the_closed_is_used,
        "test_force_release_is_audited": client.nothing_is_logged,
        "test_bad_tickets": client.bad_tickets_are_defects,
        "test_bad_tickets_of_the_published_calls": client.any_ticket_will_do,
    },
    BadInputCases: {
        "test_names": client.any_name_will_do,
        "test_options_of_a_lock": client.any_option_will_do,
        "test_options_of_connect": client.any_option_will_do,
        "test_timeouts": client.any_seconds_will_do,
        "test_leases_of_the_calls": client.any_seconds_will_do,
        "test_options_resolve": client.leases_are_believed_too_long,
    },
    CloseCases: {
        "test_close_releases": client.closing_releases_nothing,
        "test_close_ends_the_waiting": client.closing_ends_no_wait,
        "test_close_inside_a_body": client.closing_releases_nothing,
        "test_close_under_a_body": client.closing_releases_nothing,
        "test_cancelled_close_is_carried_out": client.closing_begins_with_a_wait,
        "test_await_and_close": broken.Apart,
    },
}
GIVEN: dict[Name, dict[str, Any]] = {
    (OneNameOneLockCases, "test_modes_wait_for_each_other"): {
        "holds": "mutex",
        "asks": "reader",
    },
}
"""Arguments of parametrized cases for which the first ones will not do."""
QUICK: set[Name] = {
    (FairnessCases, "test_who_does_not_come_blocks_nobody"),
    (SeatCases, "test_a_foreign_release_lets_us_in"),
    (SeatCases, "test_waiters_survive_a_deleted_seat"),
}
"""Cases in which a poll or a claim window passes: here it is a short one."""
PATIENT: set[Name] = {
    (FairnessCases, "test_who_does_not_come_blocks_nobody"),
    (LeaseCases, "test_an_awaited_grant_is_kept"),
    (PassingCases, "test_adopted_is_kept"),
}
"""Cases in which a lease of a second passes, or the life of a queue entry."""

_OTHER_PROCESS = (
    "its client runs in a process of its own, which a fault planted here does not "
    "reach; to start one for a control costs a second of CPU"
)
WITHOUT_CONTROL: dict[Name, str] = {
    (CloseCases, "test_after_a_fork"): _OTHER_PROCESS,
    (CloseCases, "test_a_body_left_in_a_fork"): _OTHER_PROCESS,
    (ProcessCases, "test_nothing_is_counted_twice"): _OTHER_PROCESS,
    (ProcessCases, "test_a_release_wakes_another_process"): _OTHER_PROCESS,
    (ProcessCases, "test_a_killed_holder"): _OTHER_PROCESS,
    (ProcessCases, "test_a_killed_waiter"): _OTHER_PROCESS,
}
"""Cases that have no control, and why."""


def listed() -> Iterator[tuple[Planted, type[Cases], str]]:
    for cases, faults in CONTROLS.items():
        for name, planted in faults.items():
            yield planted, cases, name


NAMED = [
    pytest.param(planted, cases, name, id=f"{planted.__name__}-{cases.__name__}-{name}")
    for planted, cases, name in listed()
]
QUICK_POLLS = PollPolicy(
    poll_min=0.05, poll_max=0.1, entry_ttl=1.5, claim_window=0.1, pushes=True
)
SOUND_PATIENCE = 20.0
HASTY_PATIENCE = 0.8
LONGER_PATIENCE = 4.0
"""Seconds that a case has patience without the fault, and with it; if in ``PATIENT``,
the last. Without the fault each case passes with that patience, too.
"""


def arguments(cases: type[Cases], name: str) -> dict[str, Any]:
    """Return the first ones of a parametrized case, or those of ``GIVEN``."""
    chosen: dict[str, Any] = {}
    for mark in getattr(getattr(cases, name), "pytestmark", ()):
        if mark.name == "parametrize":
            names, (first, *_) = mark.args
            if isinstance(names, str):
                chosen[names] = first
            else:
                chosen.update(zip(names, first, strict=True))
    return chosen | GIVEN.get((cases, name), {})


@pytest.mark.parametrize(("planted", "cases", "name"), NAMED)
async def test_the_case_fails(
    planted: Planted,
    cases: type[Cases],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """With the fault that is planted for it, and not without."""
    case = cases, name, {**arguments(cases, name), "caplog": caplog}
    if (cases, name) in QUICK:
        monkeypatch.setattr(MemoryStore, "poll_policy", QUICK_POLLS)
    await run(Fault, case, tmp_path, SOUND_PATIENCE)
    caplog.clear()
    fault = Fault
    if inspect.isclass(planted):
        assert issubclass(planted, Fault)
        fault = planted
    else:
        planted(monkeypatch)
    patience = LONGER_PATIENCE if (cases, name) in PATIENT else HASTY_PATIENCE
    assert await is_noticed(fault, case, tmp_path, patience)


async def test_every_case_has_a_control() -> None:
    """One at least, or a reason in ``WITHOUT_CONTROL`` why it has none."""
    central = {(cases, name) for _, (cases, name, _) in test_controls.CONTROLS}
    pushed = {(cases, name) for _, cases, name, _ in test_controls.CLIENT_CONTROLS}
    rest = {(cases, name) for _, cases, name in listed()}
    of_its_own = {(ProcessCases, "test_two_processes_exclude_each_other")}
    controlled = central | pushed | rest | of_its_own
    every = {
        (cases, name)
        for cases in (*ALL_CASES, *CLIENT_CASES)
        for name in vars(cases)
        if name.startswith("test_")
    }
    assert not controlled & set(WITHOUT_CONTROL)
    assert controlled | set(WITHOUT_CONTROL) == every
