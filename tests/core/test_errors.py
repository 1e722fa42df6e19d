"""The error tree."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import fields

import pytest

from aiorwlock_remote import errors
from aiorwlock_remote.errors import ConfigurationError, LockError, LockTimeout, NotOwner

CLASSES = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, LockError)
]
VALUES: dict[str, object] = {
    "str": "some text",
    "float": 1.5,
    "int": 7,
    "tuple[str, ...]": ("a", "b"),
    "float | None": 2.5,
    "LossReason": "stolen",
}


def filled(cls: type[LockError]) -> LockError:
    """An error with something in every field."""
    values = {f.name: VALUES.get(str(f.type), f.default) for f in fields(cls) if f.init}
    return cls(**values)


def drawn() -> dict[str, tuple[str, str]]:
    """The tree in the docstring: class → (parent, builtin)."""
    found: dict[str, tuple[str, str]] = {}
    path: list[str] = []
    text = errors.__doc__ or ""
    for line in text.splitlines():
        match = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            found[match[2]] = (path[-2] if depth else "Exception", match[3] or "")
    return found


def test_the_tree_is_as_drawn() -> None:
    """The docstring shows the whole tree."""
    tree = drawn()
    assert set(tree) == {cls.__name__ for cls in CLASSES}
    for cls in CLASSES:
        parent, builtin = tree[cls.__name__]
        names = [base.__name__ for base in cls.__bases__]
        assert names == [parent, *([builtin] if builtin else [])]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("full", [False, True])
def test_errors_survive_pickling(cls: type[LockError], full: bool) -> None:
    """Class, fields and text stay equal with every protocol."""
    error = filled(cls) if full else cls()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
        assert type(again) is cls
        for field in fields(cls):
            assert getattr(again, field.name) == getattr(error, field.name)
        assert (str(again), repr(again)) == (str(error), repr(error))


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_speak(cls: type[LockError]) -> None:
    """An error has one line of text, an HTTP status, and all fields in its ``repr``."""
    error = filled(cls)
    assert str(error)
    assert "\n" not in str(error)
    assert 400 <= error.status_hint < 600
    for field in fields(cls):
        assert f"{field.name}={getattr(error, field.name)!r}" in repr(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_no_error_takes_a_ticket(cls: type[LockError]) -> None:
    """Holders are shown by their public ids."""
    assert not {"ticket", "tickets", "token", "password"} & {
        f.name for f in fields(cls)
    }


def test_errors_are_distinguished() -> None:
    """Errors are compared by identity, as exceptions are."""
    assert LockTimeout() != LockTimeout()
    assert len({LockTimeout(), LockTimeout()}) == 2


def test_hints_follow_what_happened() -> None:
    """A hint follows the text, if there is one."""
    assert str(ConfigurationError(what="bad", hint="do good")) == "bad; do good"
    assert str(ConfigurationError(what="bad")) == "bad"


def test_not_owner_says_what_was_meant_to_be_done() -> None:
    """The text names the refused action, and says why."""
    message = str(NotOwner(resource="order/42", action="release"))
    assert message.startswith("cannot release order/42: ")
    assert "released, moved or given away" in message


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("full", [False, True])
def test_an_error_is_made_anew_of_its_args(cls: type[LockError], full: bool) -> None:
    """As Celery does it, which stores the arguments as JSON."""
    error = cls()
    if full:  # a store may add to an error that it caught
        for name, value in vars(filled(cls)).items():
            setattr(error, name, value)
    again = cls(*json.loads(json.dumps(error.args)))
    assert str(again) == str(error)
    for field in fields(cls):
        if not field.kw_only:
            given, made = getattr(error, field.name), getattr(again, field.name)
            assert made == (list(given) if isinstance(given, tuple) else given)
