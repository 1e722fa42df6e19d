"""The synchronous API is derived from the async one, and nothing is missing."""

from __future__ import annotations

import ast
import inspect

import pytest

import aiorwlock_remote as aio
from aiorwlock_remote import sync
from tests.sync import derive

ASYNC_ONLY = {
    "Acquisition": "`acquire` returns a Held",
    "Connecting": "`connect` returns a Locks",
    "InTransaction": "see LEFT_OUT",
    "__version__": "of the package",
}


BY_HAND = {"connect", "AnyLock", "OnLost", "Synchronized"}


def test_the_module_is_up_to_date() -> None:
    """If not: ``nox -s sync_api``."""
    derived = ast.parse(derive.module())
    assert ast.dump(derived) == ast.dump(ast.parse(derive.TARGET.read_text("utf-8")))


def test_every_replacement_word_is_needed() -> None:
    """A docstring of the async API that has changed needs other words."""
    derive.module()
    assert derive.WORDS.unused == set()


def test_every_name_is_there() -> None:
    assert set(aio.__all__) - set(sync.__all__) == set(ASYNC_ONLY)
    for name in set(aio.__all__) & set(sync.__all__):
        here, there = getattr(sync, name), getattr(aio, name)
        derived = (
            here.__module__ == sync.api.__name__ if inspect.isclass(here) else None
        )
        assert derived or here is there or name in BY_HAND, name
    assert sorted(sync.__all__, key=str.casefold) == sorted(
        set(sync.__all__), key=str.casefold
    )


@pytest.mark.parametrize("cls", derive.CLASSES, ids=lambda cls: cls.source.__name__)
def test_every_member_is_there(cls: derive.Derived) -> None:
    name = cls.source.__name__
    mine = getattr(sync.api, name)
    theirs = [n for n in dir(cls.source) if not n.startswith("_")]
    kept = [n for n in theirs if f"{name}.{n}" not in derive.LEFT_OUT]
    assert [n for n in kept if not hasattr(mine, n)] == []
    for member in kept:
        source, derived = getattr(cls.source, member), getattr(mine, member)
        if inspect.isfunction(source) and member != "guard":
            here = list(inspect.signature(derived).parameters)
            assert here == list(inspect.signature(source).parameters)


@pytest.mark.parametrize("left_out", [*derive.LEFT_OUT, *derive.BY_HAND])
def test_members_left_out_exist(left_out: str) -> None:
    name, _, member = left_out.partition(".")
    (cls,) = (c.source for c in derive.CLASSES if c.source.__name__ == name)
    assert hasattr(cls, member)


def public_classes() -> list[type]:
    there = (getattr(sync, name) for name in sync.__all__)
    return [cls for cls in there if inspect.isclass(cls)]


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)
def test_everything_is_documented(cls: type) -> None:
    members = {n: m for n, m in inspect.getmembers(cls) if not n.startswith("_")}
    functions = {n: m for n, m in members.items() if inspect.isroutine(m)}
    assert [n for n, m in functions.items() if not inspect.getdoc(m)] == []
    derived = cls.__module__ == sync.api.__name__
    data = hasattr(cls, "__dataclass_fields__") or issubclass(cls, dict)
    assert not derived or data or getattr(cls, "__final__", False), "sealed"
