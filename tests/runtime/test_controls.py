"""Negative controls: with a client that is wrong in one way, the named test fails.

The tests of losses, of moves and of several locks judge what the client does, so that
no broken store fails them: each of them meets a client that breaks the promise it tests
(``tests/conformance/broken_client.py``), and must notice. With the sound client it
passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import anyio
import pytest

from aiorwlock_remote import LockError
from aiorwlock_remote.testing.faults import Fate
from tests.conformance import broken_client as client
from tests.conformance.broken_client import Breaks
from tests.runtime import test_acquire_several, test_interrupted_conversion, test_loss
from tests.runtime.conftest import quick_store

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.usefixtures("renewed_often"),
    # What a broken client makes of a test is not tidy.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Test = Callable[..., Coroutine[Any, Any, None]]
Control = tuple[Breaks, dict[str, Any]]

CONTROLS: dict[ModuleType, dict[str, Control]] = {
    test_loss: {
        "test_unseen_holders_are_not_broken": (client.anything_is_seen, {}),
        "test_error_beside_the_cancellation_is_kept": (client.losses_go_first, {}),
        "test_error_while_being_cancelled_is_kept": (client.losses_go_first, {}),
        "test_body_that_never_awaits_gets_the_loss_at_its_end": (
            client.losses_are_swallowed,
            {},
        ),
        "test_outer_cancellation_wins": (client.losses_go_first, {}),
        "test_outer_deadline_ends_as_a_timeout": (client.giving_back_is_forgotten, {}),
        "test_outer_deadline_of_asyncio": (client.giving_back_is_forgotten, {}),
        "test_inner_timeout_is_not_taken_for_a_loss": (client.errors_are_losses, {}),
        "test_guard_cancels_what_it_guards": (client.a_guard_is_deaf, {}),
        "test_guard_of_what_moves_the_grant": (client.moves_are_forgotten, {}),
        "test_on_lost_is_called_not_awaited": (client.any_option_will_do, {}),
        "test_on_lost_flag_and_callable": (client.all_bodies_are_cancelled, {}),
        "test_release_of_a_moved_grant_after_its_loss_raises": (
            client.moves_are_forgotten,
            {},
        ),
        "test_on_lost_after_a_move_gets_the_newest": (
            client.callbacks_are_called_twice,
            {},
        ),
        "test_sessions_do_not_mix": (client.a_loss_is_for_all, {}),
    },
    test_interrupted_conversion: {
        "test_a_grant_ends_while_its_upgrade_waits": (
            client.the_ended_are_upgraded,
            {"error_type": next(iter(test_interrupted_conversion.ENDS))},
        ),
        "test_its_owner_closes_while_another_task_waits": (
            client.the_closed_is_used,
            {},
        ),
        "test_an_expired_grant_does_not_ask_for_its_upgrade": (
            client.the_ended_are_upgraded,
            {},
        ),
        "test_an_ended_upgrade_is_not_polled_for": (
            client.who_left_is_looked_for,
            {},
        ),
        "test_a_released_grant_is_not_upgraded": (client.any_grant_is_used, {}),
        "test_a_reader_is_upgraded_once": (client.endings_are_forgotten, {}),
        "test_a_grant_is_lost_during_its_conversion": (
            client.the_lost_are_moved,
            {"mode": "write"},
        ),
        "test_it_is_released_while_it_is_moved": (
            client.a_lease_ends_twice,
            {"mode": "read"},
        ),
        "test_its_block_is_left_while_it_is_moved": (
            client.a_lease_ends_twice,
            {"mode": "write"},
        ),
        "test_a_ticket_is_not_given_away_during_a_conversion": (
            client.moves_are_not_noted,
            {"mode": "read"},
        ),
        "test_a_grant_is_extended_during_its_conversion": (
            client.the_moved_are_extended,
            {"mode": "write"},
        ),
        "test_a_grant_is_renewed_during_its_conversion": (
            client.moves_are_not_noted,
            {"mode": "read"},
        ),
    },
    test_acquire_several: {
        "test_all_locks_are_requested_at_once": (
            client.several_are_asked_in_turn,
            {},
        ),
        "test_locks_that_are_not_free_are_waited_for_in_order": (
            client.the_rest_is_kept,
            {},
        ),
        "test_the_time_runs_out_while_the_store_is_silent": (
            client.several_have_no_timeout,
            {},
        ),
        "test_an_answer_that_never_comes": (
            client.uncertain_requests_stay,
            {"number": 2, "fate": Fate.LOSE},
        ),
        "test_uncertain_when_nothing_comes_back": (client.uncertainty_is_hidden, {}),
        "test_a_task_that_holds_one_of_the_locks_is_refused": (
            client.an_own_task_may_wait,
            {},
        ),
        "test_locks_of_another_store_are_refused": (client.strangers_are_left_out, {}),
        "test_a_store_that_raises_turns_one_away_and_goes_on": (
            client.defects_are_raised,
            {},
        ),
        "test_one_release_fails": (client.clean_up_is_not_repeated, {}),
        "test_a_timeout_error_states_the_given_timeout": (
            client.the_rest_of_a_timeout_is_reported,
            {"entered": True},
        ),
    },
}
NAMED = [
    pytest.param(breaks, getattr(module, name), given, id=f"{breaks.__name__}-{name}")
    for module, controls in CONTROLS.items()
    for name, (breaks, given) in controls.items()
]
SOUND_PATIENCE = 20.0
HASTY_PATIENCE = 1.5
"""Seconds that a test may take without the fault, and with it."""


async def run(test: Test, given: dict[str, Any], patience: float) -> None:
    """Run the test as pytest would, for a limited time."""
    store = quick_store()
    async with store.connect(lease=0.5) as locks, store.connect_rival() as near:
        fixtures = {"link": store.link, "locks": locks, "near": near, **given}
        with anyio.fail_after(patience):
            await test(**{name: fixtures[name] for name in signature(test)})


def signature(test: Test) -> list[str]:
    return list(inspect.signature(test).parameters)


async def is_noticed(test: Test, given: dict[str, Any]) -> bool:
    """Return whether the test fails."""
    try:
        await run(test, given, HASTY_PATIENCE)
    except (AssertionError, LockError, TimeoutError, LookupError):
        return True
    # Also a group with a failure of pytest, which is no ``Exception``.
    except (BaseExceptionGroup, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize(("breaks", "test", "given"), NAMED)
async def test_the_fault_is_noticed(
    breaks: Breaks,
    test: Test,
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.MonkeyPatch.context() as own:
        await run(test, {**given, "monkeypatch": own}, SOUND_PATIENCE)
    breaks(monkeypatch)
    with pytest.MonkeyPatch.context() as own:
        assert await is_noticed(test, {**given, "monkeypatch": own})


async def test_every_test_has_a_control() -> None:
    """Of the modules that stand in ``CONTROLS``."""
    for module, controls in CONTROLS.items():
        assert {name for name in vars(module) if name.startswith("test_")} == {
            *controls
        }
