"""Steps on a mutex set as arguments of a script, and the answers of the scripts.

``lua/mutex_set.lua`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiorwlock_remote.backends.redis.answers import legible
from aiorwlock_remote.backends.redis.cluster.slots import beside, one_slot
from aiorwlock_remote.backends.redis.connection.calls import Raw
from aiorwlock_remote.backends.redis.connection.script import Arg, Request
from aiorwlock_remote.backends.redis.keys import WAKE, channel
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
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.pool import Ask, Busy, Took
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import LossReason, Unsupported
from aiorwlock_remote.ports import Settings

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
        self, settings: Settings, name: str, gate: str, *, cluster: bool = False
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
        BadRecord: none of ours.
    """
    if isinstance(command, Renew):
        outcomes = zip(command.tickets, answers(answer), strict=True)
        return Renewed(tuple(_renewed(*asked, told) for asked, told in outcomes))
    return decode_release(answer)


def encode_ask(
    keys: SetKeys, pool: bytes, asks: Sequence[Ask], place_life: int
) -> Request:
    """Ask for all of these, in order."""
    args: list[Arg] = [*keys.args, "a", pool, place_life]
    for ask in asks:
        args += (raw(ask.target), ask.ticket, ask.lease, int(ask.more))
    return SET_ENTER, tuple(args)


@legible()
def decode_ask(answer: Raw) -> tuple[Took | Busy, ...]:
    """Who got what.

    Raises:
        BadRecord: none of our answers.
    """
    return tuple(
        Took(shown(second), first)
        if first > 0
        else Busy(None if second < 0 else second)
        for first, second in answers(answer)
    )


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
        BadRecord: none of our answers.
    """
    (told,) = answers(answer)
    if told[0] == 1:
        return Released(held=True)
    return Released(held=False, reason=_REASONS[told[1]])


def answers(answer: Raw) -> Raw:
    """What follows the places that are rung."""
    return answer[1:]


def pool_of(place: bytes) -> bytes:
    """The pool a place belongs to."""
    return place.partition(b",")[0]


def target_of(place: bytes) -> str:
    """What is waited for at a place."""
    return shown(place.partition(b",")[2])


def _renewed(ticket: str, lease: int | None, told: Raw) -> Grant | NotHeld:
    if told[0] == 0:
        return NotHeld(_REASONS[told[1]])
    score: int = told[0]
    return Grant(ticket, Mode.WRITE, score, score, score + (lease or 0))
