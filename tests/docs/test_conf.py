"""How the API reference shows signatures."""

from __future__ import annotations

import inspect
from typing import Any

from aiorwlock_remote import Locks, Mutex, connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from docs.conf import NOT_TAKEN, show_signature
from tests.docs.test_tables import DOCS, code, table_of


def shown(what: str, name: str, thing: Any) -> str:  # noqa: ANN401 - what Sphinx has
    """As Sphinx asks; it writes no annotations into signatures."""
    parameters = inspect.signature(thing).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    signature = str(inspect.Signature(bare))
    result = show_signature(None, what, name, thing, None, signature, None)  # type: ignore[arg-type]
    assert result is not None
    return result[0] or ""


def test_classes_made_by_the_library_show_no_arguments() -> None:
    assert shown("class", "aiorwlock_remote.Locks", Locks) == ""
    assert shown("class", "aiorwlock_remote.Mutex", Mutex) == ""


def test_classes_made_by_users_show_their_arguments() -> None:
    assert "call_timeout=5.0" in shown(
        "class", "x.PostgresqlBackend", PostgresqlBackend
    )


def test_options_stand_in_the_signature() -> None:
    assert "lease=30.0, policy='fair'" in shown("function", "x.connect", connect)
    mutex = shown("method", "x.Locks.mutex", Locks.mutex)
    assert mutex.startswith("(resource_type, resource_id, *, lease=…, policy=…, fair=…")
    assert "fair" not in shown("method", "x.Locks.rwlock", Locks.rwlock)


def test_options_that_are_refused_are_those_of_the_table() -> None:
    head = "| option | `mutex` "
    for option, *taken in table_of(DOCS / "reference/options.md", head):
        for lock, cell in zip(
            ("rwlock", "semaphore", "leader"), taken[1:], strict=True
        ):
            refused = code(option) in NOT_TAKEN[lock]
            assert refused == (cell != "yes"), (option, lock)
