"""Names, requests and replies of mutex sets: many mutexes under one name.

A client takes a named mutex, or any free one. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import field
from typing import Self

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import check_str, quoted
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import ConfigurationError

# The target of a request that takes any free mutex; no mutex has that name.
ANY_MEMBER = ""


class SetMember(Resource):
    """A mutex as a resource, one of a group of interchangeable mutexes (a mutex set).

    ``type``: name of the group, ``id``: of the mutex; both unencoded. A plain
    ``Resource`` with equal names is another lock.
    """

    __slots__ = ()

    def __new__(cls, type: str, id: str, kind: str = "member") -> Self:  # noqa: A002 - the fields of a resource
        return super().__new__(cls, type, id, kind)

    @property
    def shown(self) -> tuple[str, str]:
        return self.type, self.id

    @property
    def label(self) -> str:
        return f"{self.type}/{self.id or '(any)'}"


@value
class MemberGrant(Grant):
    """Grant of a mutex of a set. ``name``: of the mutex, if any would have done."""

    name: str = ""


@value
class TakeRequest:
    """Request for a mutex of a group of interchangeable mutexes.

    ``target``: its name, or ``ANY_MEMBER`` for any free one. ``lease``: microseconds.
    ``more``: whether other tasks of this client wait for the same target.
    """

    target: str
    ticket: str = field(repr=False)
    lease: int
    more: bool = False


@value
class Taken:
    """Reply to a ``TakeRequest``: the name of the mutex taken, and its fence."""

    name: str
    fence: int


@value
class Busy:
    """Reply to a ``TakeRequest``: no mutex was free.

    ``retry_after``: microseconds until one may become free by expiry; None: not known.
    """

    retry_after: int | None


@value
class TakeReplies:
    """Replies, or errors, to requests that were sent together, in their order.

    ``rung``: targets (names of mutexes, or ``ANY_MEMBER``) that this client may get now
    if it repeats its requests.
    """

    answers: tuple[Taken | Busy | BaseException, ...]
    rung: tuple[str, ...] = ()


def check_set_name(what: str, name: object) -> str:
    """Return a name valid for a mutex or a set; else raise an error about ``what``."""
    text = check_str(what, name)
    if not text:
        raise ConfigurationError(what=f"{what} is empty")
    try:
        # Other programs may have written a name that is not Unicode. ``list`` shows it
        # with surrogate escapes, and such a name must be accepted here again.
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        what = f"{quoted(text)} is not valid Unicode text"
        raise ConfigurationError(what=what) from None
    return text
