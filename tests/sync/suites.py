"""What of the conformance suite the synchronous API runs, and why not the rest."""

from __future__ import annotations

from aiorwlock_remote.testing.conformance import ConformanceSuite

INTERRUPTIBLE_EVERY = 0.01
"""Seconds between two instructions of a thread that waits, where an interrupt hits."""

#: Whole classes that do not reach the synchronous API.
NOT_OURS = {
    "TestCrowd": "hundreds of tasks would be hundreds of threads",
    "TestDeclared": "opens the store itself",
    "TestClientPushed": "as TestPushed",
    "TestForeignPushed": "as TestPushed",
    "TestPushed": "holds the store's messages back, in the loop of the test",
}
#: Cases whose subject is the event loop of the caller.
NOT_OF_THREADS = {
    "test_another_loop": "any thread may use it",
    "test_after_a_fork": "of the async API in a child; see test_exit.py",
    "test_a_body_left_in_a_fork": "the same",
    "test_a_task_that_ended_without_release": "a grant belongs to its Held",
    "test_each_phase_reads_the_stores_clock": "calls methods of the class Held",
    "test_a_move_that_fails_late": "the same",
    "test_close_inside_a_body": "the block ends with Closed; see test_exit.py",
    "test_cancelled_close_is_carried_out": "looks at once; see test_interrupts.py",
    "test_max_stall": "stalls the loop of the caller",
    "test_not_reentrant": "awaits nothing; see test_grants.py",
    "test_a_cycle_leaves_no_garbage": "of the adapter; see test_grants.py",
    "test_guard_cancels_what_it_guards": "guards a function; see test_grants.py",
    "test_guard_gives_the_result": "the same",
}


def in_threads(suite: type[ConformanceSuite]) -> type[ConformanceSuite]:
    """Leave out of a suite what is not for the synchronous API."""
    for name, cases in list(vars(suite).items()):
        if name in NOT_OURS:
            delattr(suite, name)
        elif isinstance(cases, type):
            for case in NOT_OF_THREADS.keys() & dir(cases):
                setattr(cases, case, None)
    return suite
