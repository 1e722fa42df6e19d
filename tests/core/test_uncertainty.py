"""Which errors prove that nothing was carried out."""

from __future__ import annotations

import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.core.uncertainty import (
    after_change,
    is_uncertain,
    may_be_repeated,
    without_proof,
)

LOST = BackendUnavailable(what="no answer")
UNSENT = BackendUnavailable(what="not sent", nothing_done=True)
PROOFS = [
    UNSENT,
    BackendError(what="refused", nothing_done=True),
    ConfigurationError(what="no such option"),
    IllegalCommand("two resources"),
]


@pytest.mark.parametrize(
    "error", [LOST, BackendError(what="odd"), OSError(), EOFError()]
)
def test_any_other_error_proves_nothing(error: Exception) -> None:
    assert is_uncertain(error)
    assert not may_be_repeated(error)
    assert without_proof(error) is error


@pytest.mark.parametrize("error", PROOFS)
def test_a_proof_counts_for_its_own_attempt_only(error: Exception) -> None:
    """An earlier attempt of the same request may have been carried out."""
    assert not is_uncertain(error)
    doubtful = without_proof(error)
    assert is_uncertain(doubtful)
    assert doubtful.__cause__ is error
    assert not is_uncertain(error), "other tasks raise the same object"


def test_no_error_is_no_doubt() -> None:
    assert not is_uncertain(None)


def test_only_what_may_pass_is_repeated() -> None:
    assert [may_be_repeated(error) for error in PROOFS] == [True, False, False, False]
    refused = BackendUnavailable(what="too few", nothing_done=True)
    refused.replicas = 0
    assert not may_be_repeated(refused)


def test_a_request_in_parts_may_be_half_done() -> None:
    error = BackendUnavailable(what="not sent", retry_after=2.0, nothing_done=True)
    doubtful = after_change(error)
    assert is_uncertain(doubtful)
    assert (doubtful.what, doubtful.retry_after) == ("not sent", 2.0)
