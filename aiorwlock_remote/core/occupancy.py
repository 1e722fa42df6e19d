"""Pending → using: the protocol by which objects that always exist are occupied.

All transitions of a contender are in ``next_action``. The function knows no store and
no clock: its caller carries out each action and passes the result in.

================  ======================  =========================================
action            result                  next
================  ======================  =========================================
WRITE             done                    LOOK_PENDING
LOOK_PENDING      another                 REMOVE, then REST, then WRITE
..                only dead ones          DROP_PENDING, then LOOK_PENDING
..                none                    LOOK_USING
LOOK_USING        another                 REMOVE, then BUSY
..                only dead ones          DROP_USING, then LOOK_USING
..                none                    PROMOTE
PROMOTE           done                    USING, or CONFIRM
..                refused                 REMOVE, then REST, then WRITE
CONFIRM           another                 REMOVE, then REST, then WRITE
..                none, or dead ones      USING
================  ======================  =========================================

Why two contenders never use an object together: each writes its pending record before
it looks. Of two, the one that wrote last finds the other: among the pending records or,
because those are looked at later, among the using ones. The other order of looks misses
a record that moves in between (test_control_usings_looked_at_first). Neither look needs
to be a snapshot.

A pending record that was dropped as dead cannot become a using one: PROMOTE is refused
unless the record still exists (test_control_a_dropped_pending_must_not_become_using). A
contender that was only slow begins again. No contender passes a pending record that may
still be promoted: if it could not be dropped, the next look finds it.

CONFIRM is for stores where LOOK_USING may show an old state (a shared mount caches
folders): a look after a change of one's own is never old
(test_control_an_old_look_that_nothing_confirms).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from uuid import UUID

from aiorwlock_remote.core.names import ResourceId, key_pair
from aiorwlock_remote.core.text import check_str, check_unicode, one_line, quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import ConfigurationError

# Bytes of an object's name: a column and a file's name must hold it.
MAX_OBJECT_NAME_BYTES = 200
# Bytes of a contender's label.
MAX_LABEL = 64
NONCE_DIGITS = 32
_HEX = frozenset("0123456789abcdef")
# Seconds: at a shorter age a contender of a slow store would count as dead.
MIN_PENDING = 1.0


class Action(Enum):
    """Next step of a process that wants an object; the last is BUSY or USING."""

    WRITE = auto()
    LOOK_PENDING = auto()
    DROP_PENDING = auto()
    LOOK_USING = auto()
    DROP_USING = auto()
    PROMOTE = auto()
    CONFIRM = auto()
    REMOVE = auto()
    REST = auto()
    BUSY = auto()
    USING = auto()


@value
class ContenderRecord:
    """Record in the store of a process that wants (pending) or has (using) an object.

    Attributes:
        who: Id of the process's attempt to get the object.
        age: Seconds since it was written or extended, by the store's clock.
        dead: Whether the process has certainly ended.
        mark: Number that differs if the same ``who`` writes the record again.
        label: Name shown to people, if the store knows a better one than ``who``.
    """

    who: str
    age: float
    dead: bool = False
    mark: int = 0
    label: str = ""

    @property
    def shown(self) -> str:
        return self.label or label_of(self.who)


@value
class ExpiryAges:
    """Seconds since a record's last write after which it counts as dead; None: never.

    ``pending``: of processes that want an object. ``using``: of those that have it.
    """

    pending: float = 10.0
    using: float | None = 600.0

    def __post_init__(self) -> None:
        check_seconds("pending_age", self.pending, least=MIN_PENDING, endless=False)
        check_seconds("using_age", self.using, least=MIN_PENDING)


@value
class NextAction:
    """Next step of a process that wants an object.

    ``records``: those to drop, or those that block the process. ``then``: what to do
    after ``REMOVE``, the removal of the process's own record.
    """

    do: Action
    records: tuple[ContenderRecord, ...] = ()
    then: Action | None = None


ActionResult = Sequence[ContenderRecord] | bool | None
"""The records a look found, whether PROMOTE was done, or None for other actions."""

FIRST_ACTION = NextAction(Action.WRITE)


def next_action(
    move: NextAction, answer: ActionResult, ages: ExpiryAges, *, confirm: bool = False
) -> NextAction:
    """Return the next step of a process whose step ``move`` had the result ``answer``.

    ``ages``: when others' records count as dead. ``confirm``: whether the store may
    show an old state. A result that does not fit the action raises ``ValueError``.
    """
    match move.do, answer:
        case Action.WRITE | Action.DROP_PENDING, None:
            return NextAction(Action.LOOK_PENDING)
        case Action.LOOK_PENDING, list() | tuple():
            return (
                _give_way(answer, ages.pending, Action.REST)
                or _drop(Action.DROP_PENDING, answer)
                or NextAction(Action.LOOK_USING)
            )
        case Action.DROP_USING, None:
            return NextAction(Action.LOOK_USING)
        case Action.LOOK_USING, list() | tuple():
            return (
                _give_way(answer, ages.using, Action.BUSY)
                or _drop(Action.DROP_USING, answer)
                or NextAction(Action.PROMOTE)
            )
        case Action.PROMOTE, True:
            return NextAction(Action.CONFIRM if confirm else Action.USING)
        case Action.PROMOTE, False:
            return NextAction(Action.REMOVE, then=Action.REST)
        case Action.CONFIRM, list() | tuple():
            way = _give_way(answer, ages.using, Action.REST)
            return way or NextAction(Action.USING)
        case Action.REMOVE, None if move.then is not None:
            return NextAction(move.then, move.records)
        case Action.REST, None:
            return FIRST_ACTION
        case _:
            raise ValueError(f"{answer!r} is not a result of {move.do.name}")


def object_name(thing: object) -> tuple[str, ResourceId]:
    """Return ``thing`` if it is a (kind, id) pair; else ``ConfigurationError``."""
    match thing:
        case (str() as kind, int() | str() | UUID() as object_id):
            return kind, object_id
        case _:
            raise ConfigurationError(
                what=f"{type(thing).__name__} is not the name of an object",
                hint='a pair: ("book", 42)',
            )


def object_key(kind: str, object_id: ResourceId) -> str:
    """Return the name of an object in a store: ``kind:id``, not encoded."""
    name = key_pair(kind, object_id).key
    if len(name.encode()) > MAX_OBJECT_NAME_BYTES:
        raise ConfigurationError(
            what=f"the object's name {quoted(name)} is longer than "
            f"{MAX_OBJECT_NAME_BYTES} bytes"
        )
    return name


def check_pattern(what: str, pattern: object) -> str:
    """Return a name pattern if it has one ``%s``, for the object's name; else raise."""
    if not isinstance(pattern, str) or pattern.count("%s") != 1:
        raise ConfigurationError(
            what=f"{what}={quoted(pattern)} does not name each object",
            hint=f'"{what}:%s": the object\'s name takes the place of %s',
        )
    check_unicode(what, pattern)
    return pattern


def check_label(text: str) -> str:
    """Return a process's label for people: one line of ``MAX_LABEL`` bytes at most."""
    return one_line(check_str("who", text), MAX_LABEL)


def contender_id(label: str, nonce: bytes) -> str:
    """Return the id of one attempt to get an object: label, comma, nonce in hex."""
    return f"{label},{nonce.hex()}"


def label_of(who: str) -> str:
    """Return the label in an id ``label,nonce``; any other id is returned whole."""
    label, _, nonce = who.rpartition(",")
    # An id of another program may contain a comma, too; only ours end in a nonce.
    ours = len(nonce) == NONCE_DIGITS and set(nonce) <= _HEX
    return label if label and ours else who


def _give_way(
    records: Sequence[ContenderRecord], age: float | None, then: Action
) -> NextAction | None:
    living = tuple(
        record
        for record in records
        if not (record.dead or (age is not None and record.age > age))
    )
    return NextAction(Action.REMOVE, living, then) if living else None


def _drop(do: Action, records: Sequence[ContenderRecord]) -> NextAction | None:
    return NextAction(do, tuple(records)) if records else None
