"""The two states of a ``ModeQueue``, and the table of their transitions.

``Entry`` is what the client knows of its queue entry in the store, ``Request`` what it
asks the store for. Every change of either is a step of ``TRANSITIONS``, made by
``ModeQueue._move`` alone. The table knows neither tasks nor commands: which event
happened, and which request is to be sent, is decided in ``core/mode_queue.py``.

``tests/core/test_queue_states.py`` compares the table with random histories, which
have to reach each of its steps. The picture in ``docs/architecture.md`` is drawn from
it (``docs/pictures/queue_states.py``).
"""

from __future__ import annotations

from enum import StrEnum


class Entry(StrEnum):
    """What a client knows of its entry for one mode in the store's queue."""

    NONE = "none"
    """The store has no entry."""
    MAYBE = "maybe"
    """A request whose reply was lost may have made an entry."""
    PLACED = "placed"
    """The store has an entry, by its last reply, so wake-ups come."""
    WITHDRAWN = "withdrawn"
    """A withdrawal follows the request under way, and ends the entry that this request
    makes or renews, whatever its reply says.
    """


class Request(StrEnum):
    """What a client asks the store for; one request at a time."""

    IDLE = "idle"
    """No request is under way."""
    HELD_BACK = "held back"
    """A request is to be sent, but tasks of the other mode come first."""
    ASKING = "asking"
    """An acquire is under way."""
    CONFIRMING = "confirming"
    """An acquire is under way that confirms a pushed grant."""


class Event(StrEnum):
    """What changes the states of a ``ModeQueue``."""

    HOLD = "hold"
    """A task joins whose request has to wait for tasks of the other mode."""
    ASK = "ask"
    """An acquire is sent."""
    CONFIRM = "confirm"
    """A task enters by a message; the acquire that confirms its grant is sent."""
    REPLY_PLACED = "reply: placed"
    """The reply says that the store has an entry."""
    REPLY_NOT_PLACED = "reply: not placed"
    """The reply says that the store has no entry."""
    REPLY_NOT_HELD = "reply: not held"
    """The pushed grant has ended. The request changed no entry."""
    LOST = "lost"
    """The request failed. It may have been carried out, and tasks still wait."""
    FAILED = "failed"
    """The request failed, and leaves no entry to the queue: it was not carried out, or
    all tasks were turned away, and withdraw what they asked for.
    """
    EMPTIED = "emptied"
    """The last task left, entered or was turned away."""


# On Python 3.11 ``Entry.NONE`` costs a tenth of a microsecond more than a global name.
NONE: Entry = Entry.NONE
MAYBE: Entry = Entry.MAYBE
PLACED: Entry = Entry.PLACED
WITHDRAWN: Entry = Entry.WITHDRAWN
IDLE: Request = Request.IDLE
HELD_BACK: Request = Request.HELD_BACK
ASKING: Request = Request.ASKING
CONFIRMING: Request = Request.CONFIRMING
HOLD: Event = Event.HOLD
ASK: Event = Event.ASK
CONFIRM: Event = Event.CONFIRM
REPLY_PLACED: Event = Event.REPLY_PLACED
REPLY_NOT_PLACED: Event = Event.REPLY_NOT_PLACED
REPLY_NOT_HELD: Event = Event.REPLY_NOT_HELD
LOST: Event = Event.LOST
FAILED: Event = Event.FAILED
EMPTIED: Event = Event.EMPTIED

UNDER_WAY: tuple[Request, ...] = (ASKING, CONFIRMING)
"""The states in which the client waits for a reply."""

States = tuple[Entry, Request]

TRANSITIONS: dict[States, dict[Event, States]] = {
    (NONE, IDLE): {
        HOLD: (NONE, HELD_BACK),
        ASK: (NONE, ASKING),
        EMPTIED: (NONE, IDLE),
    },
    (MAYBE, IDLE): {
        HOLD: (MAYBE, HELD_BACK),
        ASK: (MAYBE, ASKING),
        EMPTIED: (NONE, IDLE),
    },
    # A message is believed here only: without an entry no grant can have been pushed,
    # and of a request under way the reply decides.
    (PLACED, IDLE): {
        ASK: (PLACED, ASKING),
        CONFIRM: (PLACED, CONFIRMING),
        EMPTIED: (NONE, IDLE),
    },
    (NONE, HELD_BACK): {
        ASK: (NONE, ASKING),
        EMPTIED: (NONE, IDLE),
    },
    (MAYBE, HELD_BACK): {
        ASK: (MAYBE, ASKING),
        EMPTIED: (NONE, IDLE),
    },
    (NONE, ASKING): {
        REPLY_PLACED: (PLACED, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        LOST: (MAYBE, IDLE),
        FAILED: (NONE, IDLE),
        EMPTIED: (WITHDRAWN, ASKING),
    },
    (MAYBE, ASKING): {
        REPLY_PLACED: (PLACED, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        LOST: (MAYBE, IDLE),
        FAILED: (MAYBE, IDLE),
        EMPTIED: (WITHDRAWN, ASKING),
    },
    (PLACED, ASKING): {
        REPLY_PLACED: (PLACED, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        LOST: (PLACED, IDLE),
        FAILED: (PLACED, IDLE),
        EMPTIED: (WITHDRAWN, ASKING),
    },
    # Tasks may have joined since: then each of these steps is followed by ``ASK``, or
    # after a failure by a pause.
    (WITHDRAWN, ASKING): {
        REPLY_PLACED: (NONE, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        LOST: (NONE, IDLE),
        FAILED: (NONE, IDLE),
        EMPTIED: (WITHDRAWN, ASKING),
    },
    (PLACED, CONFIRMING): {
        REPLY_PLACED: (PLACED, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        REPLY_NOT_HELD: (PLACED, IDLE),
        LOST: (PLACED, IDLE),
        FAILED: (PLACED, IDLE),
        EMPTIED: (WITHDRAWN, CONFIRMING),
    },
    (WITHDRAWN, CONFIRMING): {
        REPLY_PLACED: (NONE, IDLE),
        REPLY_NOT_PLACED: (NONE, IDLE),
        REPLY_NOT_HELD: (NONE, IDLE),
        LOST: (NONE, IDLE),
        FAILED: (NONE, IDLE),
        EMPTIED: (WITHDRAWN, CONFIRMING),
    },
}


class IllegalEvent(Exception):
    """An event does not fit the states of a ``ModeQueue``, which did not change."""
