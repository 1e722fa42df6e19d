"""Runs of the library under virtual time, and faults planted to be found.

`nox -s long` has all 2,000 seeds, the full tests a fifth of them.

``python -m tests.simulation --seed N`` tells the story of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from tests.faults.workers import ROOT
from tests.long import mostly_long
from tests.simulation import planted_bounds, planted_redis, planted_sync
from tests.simulation.planted import PLANTED
from tests.simulation.scenario import Run, simulate

# A thread that is interrupted before its body drops its grant.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* was dropped without release:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SEEDS = {
    "core": 1520,
    "sync": 200,
    "tables": 40,
    "redis": 100,
    "cluster": 40,
    "failovers": 100,
}
PART = 20
"""Seeds of one test."""
MAX_SEEDS_TO_FIND = 200
FINDING_SEEDS = {
    "a_message_needs_no_proof": 82,
    "who_is_cancelled_keeps_its_grant": 16,
    "an_expired_lease_is_valid": 92,
    "uncertain_requests_are_not_withdrawn": 16,
    "a_renewal_counts_from_its_reply": 15,
    "failed_clean_up_is_not_repeated": 558,
    "a_withdrawal_gives_no_grant_back": 11,
    "a_script_does_not_compare_the_ticket": 56,
    "forgotten_scripts_are_not_loaded": 13,
    "a_call_does_not_follow_its_slot": 20,
    "a_former_primary_is_believed": 7,
    "a_failover_renews_nothing": 155,
    "a_withdrawal_wakes_nobody": 40,
    "a_wake_up_during_a_request_is_forgotten": 27,
    "a_semaphore_forgets_who_waits_before": 40,
    "the_last_task_of_a_process_is_served_first": 12,
    "a_missed_claim_keeps_its_turn": 10,
    "an_upgrade_that_is_given_up_leaves_its_slot": 48,
    "a_ticket_that_waits_in_the_entry_is_not_withdrawn": 97,
    "a_grant_for_a_task_that_was_cancelled_stays": 16,
    "an_extension_counts_from_its_reply": 41,
    "a_foreign_record_keeps_nobody_out": 86,
    "fences_are_the_time": 20,
}
"""The seed that found a fault last time, if not one of the first: it is tried first.
Any other will do as well."""


def parts() -> Iterator[Any]:
    for kind, seeds in SEEDS.items():
        ranges = (range(first, first + PART) for first in range(0, seeds, PART))
        yield from mostly_long(((kind, seeds) for seeds in ranges), 10)


def planted_faults() -> Iterator[tuple[str, str]]:
    for module in (
        planted_bounds,
        planted_redis,
        planted_sync,
    ):  # each has planted its own
        assert module.__doc__
    for kind, faults in PLANTED.items():
        for name in faults:
            yield kind, name


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seeds"), list(parts()), ids=str)
def test_every_seed_keeps_the_promises(kind: str, seeds: range) -> None:
    cycles = 0
    for seed in seeds:
        run = simulate(seed, kind)
        assert not run.world.failures, summary(run)
        cycles += run.cycles
    assert cycles > 3 * len(seeds), "the processes hardly got to their work"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), mostly_long(planted_faults(), 2))
def test_a_planted_fault_is_found(kind: str, name: str) -> None:
    seeds = chain([FINDING_SEEDS.get(name, 0)], range(MAX_SEEDS_TO_FIND))
    with PLANTED[kind][name]():
        assert any(simulate(seed, kind).world.failures for seed in seeds)


STORIES = """
import json
from tests.simulation.scenario import simulate

kept = [object() for _ in range({hash_seed}00)]  # other addresses
seeds = zip({kinds}, (14, 14, 12, 14, 3, 12))
print(json.dumps({{kind: simulate(seed, kind).world.story for kind, seed in seeds}}))
"""


@pytest.mark.slow
def test_a_seed_is_always_the_same_story() -> None:
    """Also in another process, where texts and objects have other hashes."""
    stories = []
    for hash_seed in ("0", "3"):
        script = STORIES.format(hash_seed=hash_seed, kinds=list(SEEDS))
        output = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
        stories.append(json.loads(output.stdout))
    one, other = stories
    for kind in SEEDS:
        assert len(one[kind]) > 20
        assert one[kind] == other[kind], kind


@pytest.mark.slow
def test_faults_happen() -> None:
    """The runs would prove little if nothing ever went wrong in them."""
    story = "\n".join(line for seed in range(60) for line in simulate(seed).world.story)
    for event in (
        *("is cut", "is back", "is killed", "is stopped", "stalls for", "hangs"),
        *("is cancelled", "is blocked", "is lost", "forges", "late request"),
        *("LockLost", "LockTimeout", "BackendUnavailable", "AcquireUncertain"),
        *("closes its locks", "asks for both", "(read)", "(permit)", "heals"),
        *("another program has", "is set back", "is set forward"),
    ):
        assert event in story


def summary(run: Run) -> str:
    """Return the story of a run, for a person who looks for the fault."""
    kind = "" if run.kind == "core" else f" --kind {run.kind}"
    again = f"python -m tests.simulation --seed {run.seed}{kind}"
    return "\n".join([f"seed {run.seed}: {run.plan}", *run.world.story, again])
