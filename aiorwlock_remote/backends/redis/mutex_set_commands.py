"""Steps on a mutex set as arguments of a script, and the answers of the scripts.

``lua/mutex_set.lua`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiorwlock_remote.backends.redis.cluster.slots import beside, one_slot
from aiorwlock_remote.backends.redis.connection.calls import Raw
from aiorwlock_remote.backends.redis.connection.script import Arg, Request
from aiorwlock_remote.backends.redis.keys import WAKE, channel
from aiorwlock_remote.backends.redis.replies import (
    bytes_of,
    items_of,
    legible,
    number_of,
    yes_no,
)
from aiorwlock_remote.backends.redis.scripts import SET_ENTER, SET_LEAVE
from aiorwlock_remote.core.commands import (
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.mutex_set import ANY, Busy, Taken, TakeRequest
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import LossReason, Unsupported
from aiorwlock_remote.ports import StoreSettings

_REASONS: dict[bytes, LossReason] = {
    b"expired": "expired",
    b"stolen": "stolen",
    b"forced": "forced",
}


class SetKeys:
    """The keys of one set: the published one, its name unchanged, and two beside it.

    In a cluster, one more: see ``keys``.
    """

    __slots__ = ("args", "key")

    def __init__(
        self, settings: StoreSettings, name: str, gate: str, *, cluster: bool = False
    ) -> None:
        """``gate``: whose own places are rung by the answer, not by a message.

        Raises:
            ConfigurationError: in a cluster, its keys would lie in several slots.
        """
        self.key: bytes = settings.prefix.encode() + raw(name)
        wake = WAKE.encode()
        parts = (b"state", b"queue", wake) if cluster else (b"state", b"queue")
        keys = (self.key, *(beside(self.key, b"." + part) for part in parts))
        if cluster:
            one_slot(*keys)
        memory = micros(settings.fence_memory)
        channels = keys[-1] if cluster else channel("")
        self.args: tuple[Arg, ...] = (len(keys), *keys, memory, channels, gate)


def raw(name: str) -> bytes:
    """A name as the server has it; other programs' names may be no Unicode."""
    return name.encode("utf-8", "surrogateescape")


def shown(name: bytes) -> str:
    """The inverse of ``raw``."""
    return name.decode("utf-8", "surrogateescape")


def encode_member(keys: SetKeys, command: Command) -> Request:
    """What a member can do after it was taken.

    Raises:
        Unsupported: it is never asked for anything else.
    """
    if isinstance(command, Release):
        return encode_release(keys, command.ticket, remove=False)
    if isinstance(command, Renew):
        tickets = (ticket for ticket, _ in command.tickets)
        return SET_LEAVE, (*keys.args, "n", *tickets)
    raise Unsupported(what=f"a mutex of a set knows no {type(command).__name__}")


@legible()
def decode_member(command: Command, answer: Raw) -> Reply:
    """The reply to such a command.

    Raises:
        BackendError: none of ours.
    """
    if isinstance(command, Renew):
        outcomes = zip(command.tickets, answers(answer), strict=True)
        return Renewed(tuple(_renewed(*asked, told) for asked, told in outcomes))
    return decode_release(answer)


def encode_ask(
    keys: SetKeys, pool: bytes, asks: Sequence[TakeRequest], entry_ttl: int
) -> Request:
    """Ask for all of these, in order."""
    args: list[Arg] = [*keys.args, "a", pool, entry_ttl]
    for ask in asks:
        args += (raw(ask.target), ask.ticket, ask.lease, int(ask.more))
    return SET_ENTER, tuple(args)


@legible()
def decode_ask(asks: Sequence[TakeRequest], answer: Raw) -> tuple[Taken | Busy, ...]:
    """Who got what of what was asked for.

    Raises:
        BackendError: none of our answers.
    """
    both = zip(asks, answers(answer), strict=True)
    return tuple(_asked(ask, *items_of(told)) for ask, told in both)


def _asked(ask: TakeRequest, first: Raw, second: Raw) -> Taken | Busy:
    if number_of(first) > 0:
        name = shown(bytes_of(second))
        if ask.target not in {ANY, name}:
            raise ValueError("another mutex than was asked for")
        return Taken(name, first)
    return Busy(None if number_of(second) < 0 else second)


def encode_withdraw(
    keys: SetKeys, places: Sequence[bytes], tickets: Sequence[str], lease: int
) -> Request:
    """Leave these places, and give back what these tickets hold."""
    head = (*keys.args, "t", lease, len(places))
    return SET_LEAVE, (*head, *places, *tickets)


def encode_release(keys: SetKeys, ticket: str, *, remove: bool) -> Request:
    """Give back one, and perhaps remove it from the set."""
    return SET_LEAVE, (*keys.args, "r", ticket, int(remove))


@legible()
def decode_release(answer: Raw) -> Released:
    """Whether the ticket held it.

    Raises:
        BackendError: none of our answers.
    """
    (told,) = answers(answer)
    held, *why = items_of(told)
    if yes_no(held):
        return Released(held=True)
    return Released(held=False, reason=_REASONS[why[0]])


def answers(answer: Raw) -> Raw:
    """What follows the places that are rung."""
    for place in items_of(items_of(answer)[0]):
        bytes_of(place)
    return answer[1:]


def pool_of(place: bytes) -> bytes:
    """The pool a place belongs to."""
    return place.partition(b",")[0]


def target_of(place: bytes) -> str:
    """What is waited for at a place."""
    return shown(place.partition(b",")[2])


def _renewed(ticket: str, lease: int | None, told: Raw) -> Grant | NotHeld:
    score, *why = items_of(told)
    if number_of(score) <= 0:
        return NotHeld(_REASONS[why[0]])
    return Grant(ticket, Mode.WRITE, score, score, score + (lease or 0))
