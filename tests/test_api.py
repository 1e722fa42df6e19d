"""The public surface: what is there, sealed, documented, and cheap to import."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys

import pytest

import aiorwlock_remote
from aiorwlock_remote import errors

PUBLIC = [getattr(aiorwlock_remote, name) for name in aiorwlock_remote.__all__]
CLASSES = [thing for thing in PUBLIC if inspect.isclass(thing)]

#: Names that users may rely on: docs/reference has them all.
CONTRACT = {
    "Locks": "mutex lock rwlock semaphore multi list stale force_release adopt aclose "
    "mutex_set row_lock set_rwlock occupancy acquire_mutex_lock release_mutex_lock "
    "acquire_readers_lock release_readers_lock acquire_writer_lock release_writer_lock",
    "Mutex": "acquire try_acquire locked info",
    "Semaphore": "acquire try_acquire locked info limit",
    "RWLock": "reader writer reader_lock writer_lock",
    "ReaderLock": "acquire try_acquire locked info",
    "WriterLock": "acquire try_acquire locked info",
    "Held": "fence mode acquired_at expires_in valid lost check guard extend release "
    "downgrade try_upgrade upgrade detach",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_every_name_of_the_design_exists(name: str) -> None:
    """Every name of the design is there."""
    thing = getattr(aiorwlock_remote, name)
    assert [n for n in CONTRACT[name].split() if not hasattr(thing, n)] == []


def test_all_is_sorted_and_complete() -> None:
    """``__all__`` lists every public name once."""
    names = aiorwlock_remote.__all__
    assert sorted(names, key=str.casefold) == sorted(set(names), key=str.casefold)
    assert set(errors.__all__) <= set(names)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_classes_are_sealed(cls: type) -> None:
    """Public classes cannot be subclassed by mistake; errors and data may be."""
    open_to_all = (
        issubclass(cls, BaseException | dict)
        or hasattr(cls, "__dataclass_fields__")
        or getattr(cls, "_is_protocol", False)
    )
    assert open_to_all or getattr(cls, "__final__", False), cls


@pytest.mark.parametrize(
    "thing", [*CLASSES, aiorwlock_remote.connect], ids=lambda thing: thing.__name__
)
def test_everything_is_documented(thing: object) -> None:
    """Every public class, function and method says what it is for."""
    assert inspect.getdoc(thing)
    members = inspect.getmembers(thing) if inspect.isclass(thing) else []
    missing = [
        name
        for name, member in members
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and not inspect.getdoc(member)
    ]
    assert missing == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_docstring_stands_alone(cls: type) -> None:
    """An editor shows a docstring without those around it, and knows no code names."""
    said = {
        name: inspect.getdoc(member) or ""
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
    }
    odd = re.compile(r"\bS[0-9]\b|see the class|^Likewise|\bof that:")
    assert {name: doc for name, doc in said.items() if odd.search(doc)} == {}


@pytest.mark.parametrize(
    "cls",
    [getattr(errors, n) for n in errors.__all__ if n != "LossReason"],
    ids=lambda cls: cls.__name__,
)
def test_errors_pickle(cls: type[errors.LockError]) -> None:
    """An error crosses process boundaries with all its fields."""
    error = cls()
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert repr(again) == repr(error)
    assert str(again) == str(error)


def test_import_pulls_only_anyio() -> None:
    """``import aiorwlock_remote`` loads no driver, no loop, no CLI."""
    code = (
        "import sys, anyio, anyio.lowlevel, anyio.to_thread\n"
        "before = set(sys.modules)\n"
        "import aiorwlock_remote\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - sys.stdlib_module_names))\n"
        "print(*sorted(set(sys.modules) & {'asyncio', 'sqlite3', 'trio', 'uvloop'}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out == ["aiorwlock_remote", ""]
