"""Pending → using: how objects that were always there are occupied (S4).

``next_action`` has every transition of a contender, and knows no store, no clock. Who
drives it carries out each move and says what came of it.

================  ======================  =========================================
move              answer                  next
================  ======================  =========================================
WRITE             done                    LOOK_PENDING
LOOK_PENDING      another                 REMOVE, then REST, then WRITE
..                only dead ones          DROP_PENDING, then LOOK_PENDING
..                nobody                  LOOK_USING
LOOK_USING        another                 REMOVE, then BUSY
..                only dead ones          DROP_USING, then LOOK_USING
..                nobody                  PROMOTE
PROMOTE           done                    USING, or CONFIRM
..                refused                 REMOVE, then REST, then WRITE
CONFIRM           another                 REMOVE, then REST, then WRITE
..                nobody, or dead ones    USING
================  ======================  =========================================

Why nobody uses together with another: each writes its pending before it looks. Of two,
one wrote last, and finds the other where it looks: among the pendings or, because that
is looked at later, where a pending goes. The other order of looks misses who moves in
between. Neither look needs to be a snapshot.

A pending that was dropped as dead cannot become using: PROMOTE is refused unless the
pending is still there. So a contender that was only slow begins again. And nobody gets
past a pending that may be promoted yet: what could not be dropped is found by the next
look.

CONFIRM is for stores where LOOK_USING may show what was there a moment ago (a shared
mount caches folders): a look after a change of one's own is never old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

from aiorwlock_remote.core.names import ResourceId, key_pair
from aiorwlock_remote.core.text import one_line, quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError

MAX_OBJECT_NAME_BYTES = 200
"""Of an object's name: a column and a file's name must hold it."""
MAX_LABEL = 64
NONCE_DIGITS = 32
_HEX = frozenset("0123456789abcdef")
MIN_PENDING = 1.0
"""Seconds: a shorter one would age who only waits for a slow store."""


class Action(Enum):
    """What a contender does next."""

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


@dataclass(frozen=True, slots=True)
class ContenderRecord:
    """Another contender, as a store tells of it.

    ``age``: seconds by the store's clock. ``dead``: its process is proved to be gone.
    ``mark``: what tells it from a later record of the same ``who``, if anything does.
    ``label``: who it is, for people; as ``who`` says unless a store knows better.
    """

    who: str
    age: float
    dead: bool = False
    mark: int = 0
    label: str = ""

    @property
    def shown(self) -> str:
        """Who it is, for people."""
        return self.label or label_of(self.who)


@dataclass(frozen=True, slots=True)
class ExpiryAges:
    """Seconds after which a record is dead; None: a using record never is."""

    pending: float = 10.0
    using: float | None = 600.0

    def __post_init__(self) -> None:
        """Refuse what would drop the living."""
        check_seconds("pending_age", self.pending, least=MIN_PENDING, endless=False)
        check_seconds("using_age", self.using, least=MIN_PENDING)


@dataclass(frozen=True, slots=True)
class NextAction:
    """What to do; ``records``: what to drop, or who is in the way.

    ``then``: what REMOVE leads to.
    """

    do: Action
    records: tuple[ContenderRecord, ...] = ()
    then: Action | None = None


ActionResult = Sequence[ContenderRecord] | bool | None
"""What came of a move: who was found, whether it was promoted; else nothing."""

FIRST_ACTION = NextAction(Action.WRITE)


def next_action(
    move: NextAction, answer: ActionResult, ages: ExpiryAges, *, confirm: bool = False
) -> NextAction:
    """The next move. BUSY and USING are the last ones.

    Raises:
        ValueError: this answer does not belong to that move.
    """
    match move.do, answer:
        case Action.WRITE | Action.DROP_PENDING, None:
            return NextAction(Action.LOOK_PENDING)
        case Action.LOOK_PENDING, list() | tuple():
            living = _living(answer, ages.pending)
            if living:
                return NextAction(Action.REMOVE, living, Action.REST)
            return _drop(Action.DROP_PENDING, answer) or NextAction(Action.LOOK_USING)
        case Action.DROP_USING, None:
            return NextAction(Action.LOOK_USING)
        case Action.LOOK_USING, list() | tuple():
            living = _living(answer, ages.using)
            if living:
                return NextAction(Action.REMOVE, living, Action.BUSY)
            return _drop(Action.DROP_USING, answer) or NextAction(Action.PROMOTE)
        case Action.PROMOTE, True:
            return NextAction(Action.CONFIRM if confirm else Action.USING)
        case Action.PROMOTE, False:
            return NextAction(Action.REMOVE, then=Action.REST)
        case Action.CONFIRM, list() | tuple():
            living = _living(answer, ages.using)
            return (
                NextAction(Action.REMOVE, living, Action.REST)
                if living
                else NextAction(Action.USING)
            )
        case Action.REMOVE, None if move.then is not None:
            return NextAction(move.then, move.records)
        case Action.REST, None:
            return FIRST_ACTION
        case _:
            raise ValueError(f"{answer!r} is no answer to {move.do.name}")


def object_name(thing: object) -> tuple[str, ResourceId]:
    """The name of an object that is one already.

    Raises:
        ConfigurationError: it is none.
    """
    match thing:
        case (str() as kind, int() | str() | UUID() as object_id):
            return kind, object_id
        case _:
            raise ConfigurationError(
                what=f"{type(thing).__name__} is not the name of an object",
                hint='a pair: ("book", 42)',
            )


def object_key(kind: str, object_id: ResourceId) -> str:
    """The name of an object in a store: ``kind:id``, as it is.

    Raises:
        ConfigurationError: a part that is empty or of a wrong type, a control
            character, or more than 200 bytes.
    """
    name = key_pair(kind, object_id).key
    if len(name.encode()) > MAX_OBJECT_NAME_BYTES:
        raise ConfigurationError(
            what=f"the object's name {quoted(name)} is longer than "
            f"{MAX_OBJECT_NAME_BYTES} bytes"
        )
    return name


def check_pattern(what: str, pattern: object) -> str:
    """A name in a store for each object: ``%s``, once, stands for the object's.

    Raises:
        ConfigurationError: it cannot be one.
    """
    if not isinstance(pattern, str) or pattern.count("%s") != 1:
        raise ConfigurationError(
            what=f"{what}={quoted(pattern)} does not name each object",
            hint=f'"{what}:%s": the object\'s name takes the place of %s',
        )
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(what=f"{what} is not valid Unicode text") from None
    return pattern


def check_label(text: str) -> str:
    """What people are shown of a contender: one line, not too long.

    Raises:
        ConfigurationError: no text.
    """
    if not isinstance(text, str):
        raise ConfigurationError(what=f"who must be str, not {type(text).__name__}")
    return one_line(text, MAX_LABEL)


def contender_id(label: str, nonce: bytes) -> str:
    """Who a contender is in a store: another one at each attempt."""
    return f"{label},{nonce.hex()}"


def label_of(who: str) -> str:
    """The inverse; what another program wrote is shown as it is."""
    label, _, nonce = who.rpartition(",")
    ours = len(nonce) == NONCE_DIGITS and set(nonce) <= _HEX
    return label if label and ours else who


def _living(
    records: Sequence[ContenderRecord], age: float | None
) -> tuple[ContenderRecord, ...]:
    return tuple(
        record
        for record in records
        if not (record.dead or (age is not None and record.age > age))
    )


def _drop(do: Action, records: Sequence[ContenderRecord]) -> NextAction | None:
    return NextAction(do, tuple(records)) if records else None
