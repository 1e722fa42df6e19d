"""A mutex set: many mutexes under one name; take a named one, or any that is free.

The words in which a store that holds such sets is asked, and answers. Times are
microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError

ANY_MEMBER = ""
"""The target of who takes whatever is free; no mutex has that name."""


class SetMember(Resource):
    """One mutex of a set: ``type`` is the set's name, ``id`` its own, both as they are.

    Never equal to a ``Resource`` of the same names: it is another lock.
    """

    __slots__ = ()

    def __new__(cls, type: str, id: str, kind: str = "member") -> Self:  # noqa: A002 - the fields of a resource
        """As a ``Resource``."""
        return super().__new__(cls, type, id, kind)

    @property
    def shown(self) -> tuple[str, str]:
        """As they are."""
        return self.type, self.id

    @property
    def label(self) -> str:
        """``set/name``."""
        return f"{self.type}/{self.id or '(any)'}"


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """Somebody wants ``target``. ``more``: others of this process want the same."""

    target: str
    ticket: str = field(repr=False)
    lease: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """Granted: which one, and the score it was given."""

    name: str
    fence: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Refused; ``retry_after``: there may be a change then that nobody announces."""

    retry_after: int | None


@dataclass(frozen=True, slots=True)
class TakeReplies:
    """The answers to all that was asked at once, in order; an error is one, too.

    ``rung``: the targets for which this pool has to ask again.
    """

    answers: tuple[Taken | Busy | BaseException, ...]
    rung: tuple[str, ...] = ()


def check_set_name(what: str, name: object) -> str:
    """The name of a set, or of a mutex in it.

    Raises:
        ConfigurationError: not text, empty, or not valid Unicode.
    """
    if not isinstance(name, str):
        raise ConfigurationError(what=f"{what} must be str, not {type(name).__name__}")
    if not name:
        raise ConfigurationError(what=f"an empty {what} cannot be used")
    try:
        # What other programs wrote may be no Unicode: it is named as we list it.
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(
            what=f"{quoted(name)} is not valid Unicode text"
        ) from None
    return name
