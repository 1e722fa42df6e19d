"""Steps out of compare-and-set: for stores that run no code of ours.

A step is computed here, from what was seen last, and offered to the store as a swap. An
uncontended one is a single request: it starts from what the last one left, or from the
guess that nothing is there. A refused one starts again from what the refusal tells.

An answer that needs no change is never given from memory: what was seen may be long
gone. It is loaded first.

A swap whose answer is lost may happen at any later time, as long as the version it
starts from stands. So before anything is said about the resource again, that version is
seen to be gone, or is swapped away.

The commands for one resource that wait for each other, and what is known of it.

What a reply says about grants, and whom a command asks to let in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import CasContention, CasStore, StoredState
from aiorwlock_remote.cas.server_time import with_longer_leases
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Downgrade,
    Granted,
    IllegalCommand,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.uncertainty import is_uncertain, without_proof
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, Unsupported


def with_stored_fences(step: Step, record: Doorman | None) -> Reply:
    """Its reply with the fences of the record, which the store may have chosen."""
    reply = step.reply
    if record is None or record is step.record:
        return reply

    def told(grant: Grant) -> Grant:
        return record.grant(grant.ticket) or grant

    def granted(entry: Granted) -> Granted:
        return replace(entry, grants=tuple(told(grant) for grant in entry.grants))

    if isinstance(reply, Renewed):
        outcomes = tuple(told(o) if isinstance(o, Grant) else o for o in reply.outcomes)
        return replace(reply, outcomes=outcomes)
    return map_granted(reply, granted)


def map_granted(reply: Reply, change: Callable[[Granted], Granted]) -> Reply:
    """The reply with what it says about being granted changed."""
    if isinstance(reply, Granted):
        return change(reply)
    if isinstance(reply, Released) and reply.then:
        then: tuple[Answer, ...] = tuple(
            change(entry) if isinstance(entry, Granted) else entry
            for entry in reply.then
        )
        return replace(reply, then=then)
    return reply


def claims_of(command: Command) -> tuple[Claim, ...]:
    """Who would be in if this had happened."""
    match command:
        case Acquire():
            return command.claims
        case Release():
            return tuple(claim for acquire in command.then for claim in acquire.claims)
        case Downgrade() | Upgrade() | Adopt():
            return (command.claim,)
        case _:
            return ()


@dataclass(slots=True)
class CommandQueue:
    """The commands for one resource, in order; the first is under way.

    ``sent``: when the last swap was, by ``CasStore.clock``.
    ``unsure``: tickets asked for by a swap whose answer was lost, and when it was sent.
    ``seen``: what stood there last. ``fresh``: that was after the first command was
    begun. ``lost``: where swaps started whose answers were lost; ``doubtful``: one was
    of the first command. ``refusals``: of that; ``vain``: the last of them that showed
    nothing new; ``given_up``: how often the store gave it up.
    """

    resource: Resource
    waiting: deque[tuple[Command, Pending[Reply]]] = field(
        default_factory=deque[tuple[Command, Pending[Reply]]]
    )
    seen: StoredState | None = None
    fresh: bool = False
    lost: list[StoredState] = field(default_factory=list[StoredState])
    unsure: dict[str, int] = field(default_factory=dict[str, int])
    sent: int = 0
    doubtful: bool = False
    refusals: int = 0
    vain: int = 0
    given_up: int = 0
    busy: bool = False

    def settle(self, state: StoredState) -> None:
        """Nothing that is lost can still happen, and this stands there.

        Who is not in has not been let in by it, and its grant will be a new one.
        """
        if self.unsure:
            there = () if state.record is None else state.record.grants
            tickets = {grant.ticket for grant in there}
            self.unsure = {t: at for t, at in self.unsure.items() if t in tickets}


def may_guess(command: Command) -> bool:
    """Whoever asks to enter hopes that nobody is there."""
    return isinstance(command, Acquire)


def is_repeatable(command: Command) -> bool:
    """Whether doing it again after it was done answers what was true the first time."""
    return isinstance(command, Acquire | Renew | Withdraw)


CACHE_SIZE = 4096
MAX_CONTENTION_RETRIES = 3
"""How often a step is tried that the store gives up each time."""
MAX_UNCHANGED_REFUSALS = 30
"""And one that is refused although what it starts from stands there, as it was."""

WakeClients = Callable[[Resource, tuple[str, ...]], object]
Pause = Callable[[Resource, int, Callable[[StoredState | None], None]], None]
AdjustReply = Callable[[Command, Reply, CommandQueue], Reply]


def no_pause(_: Resource, __: int, go_on: Callable[[StoredState | None], None]) -> None:
    """No pause after a refusal."""
    go_on(None)


def unchanged_reply(_: Command, reply: Reply, __: CommandQueue) -> Reply:
    """The reply unchanged."""
    return reply


class CasStepper:
    """``Store.step`` over a ``CasStore``. Belongs to one loop."""

    def __init__(
        self,
        cas: CasStore,
        wakes: WakeClients,
        pause: Pause = no_pause,
        told: AdjustReply = unchanged_reply,
    ) -> None:
        """``wakes(resource, gates)``: these have something to claim.

        ``pause(resource, refusals, go_on)``: called before each new attempt, to let go
        on later: from what the refusal told, or from a state read since.

        ``told(command, reply, line)``: what the caller is to see, by when it was asked
        for (``sent``) and what stands there now (``seen``).
        """
        self._cas = cas
        self._wakes = wakes
        self._pause = pause
        self._told = told
        self._lines: OrderedDict[Resource, CommandQueue] = OrderedDict()

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As ``Store.step``."""
        line = self._line(resource)
        pending: Pending[Reply] = Pending()
        line.waiting.append((command, pending))
        if not line.busy:
            line.busy = True
            self._begin(line)
        return pending

    def saw(self, resource: Resource, state: StoredState) -> None:
        """Somebody else's read: the next step may start from there."""
        line = self._line(resource)
        if not line.busy:
            line.seen = state

    def known(self, resource: Resource) -> StoredState | None:
        """What was seen last, if anything is remembered; from any thread."""
        line = self._lines.get(resource)
        return None if line is None else line.seen

    def unanswered(self) -> list[Resource]:
        """Where something has been asked for, and there is no answer yet."""
        return [line.resource for line in self._lines.values() if line.waiting]

    async def answered(self, resource: Resource) -> None:
        """Wait for all that was asked for there before."""
        line = self._lines.get(resource)
        if line is not None and line.waiting:
            heard: Pending[None] = Pending()
            line.waiting[-1][1].add_done_callback(lambda _: heard.set_result(None))
            await heard

    def _line(self, resource: Resource) -> CommandQueue:
        line = self._lines.get(resource)
        if line is None:
            self._make_room()
            line = self._lines[resource] = CommandQueue(resource)
        self._lines.move_to_end(resource)
        return line

    def _make_room(self) -> None:
        """Two are looked at for one that comes: of the idle, no more than stay anyhow.

        A line with something lost stays, however old: only it knows what can happen.
        """
        for _ in range(min(2, len(self._lines) + 1 - CACHE_SIZE)):
            resource, oldest = next(iter(self._lines.items()))
            if oldest.busy or oldest.lost:
                self._lines.move_to_end(resource)
            else:
                del self._lines[resource]

    def _begin(self, line: CommandQueue) -> None:
        line.fresh, line.doubtful = False, False
        line.refusals, line.vain, line.given_up = 0, 0, 0
        if line.seen is None and not line.lost and may_guess(line.waiting[0][0]):
            line.seen = self._cas.guess()
        self._go_on(line)

    def _go_on(self, line: CommandQueue) -> None:
        state = line.seen
        if state is None or (line.lost and not line.fresh):
            self._load(line)
            return
        if line.lost:
            line.lost = [lost for lost in line.lost if lost.mark == state.mark]
        if line.fresh and not line.lost:
            line.settle(state)
        try:
            at = self._cas.times(state)
            command = with_longer_leases(line.waiting[0][0], at.slack)
            step = transition(
                state.record, state.seat, command, at.now, at.floor, at.wall
            )
        except IllegalCommand as exc:
            if line.fresh:
                self._failed(line, exc)
            else:
                self._load(line)
            return
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            self._spoilt(line, exc)
            return
        same = step.record is (state.record or UNUSED_DOORMAN)
        same = same and _stored_value(step.seat) == _stored_value(state.seat)
        line.sent = at.sent
        # What still can happen starts from this version: it is swapped away unchanged.
        if not same or (line.fresh and line.lost):
            try:
                swapped = self._cas.swap(
                    line.resource, state, step.record, step.seat, at, step.wakes
                )
            except Exception as exc:  # noqa: BLE001 - as above
                self._spoilt(line, exc)
                return
            swapped.add_done_callback(partial(self._swapped, line, step))
        elif line.fresh:
            self._done(line, step.reply, step)
        else:
            self._load(line)

    def _load(self, line: CommandQueue) -> None:
        self._cas.load(line.resource).add_done_callback(partial(self._loaded, line))

    def _loaded(self, line: CommandQueue, loaded: Pending[StoredState]) -> None:
        error = loaded.error
        if error is not None:
            line.seen = None
            if isinstance(error, BadRecord | Unsupported):
                error.nothing_done = (
                    True  # by a read; see ``without_proof`` for the rest
                )
            self._unanswered(line, error)
            return
        line.seen, line.fresh = loaded.result(), True
        self._go_on(line)

    def _swapped(
        self,
        line: CommandQueue,
        step: Step,
        swapped: Pending[tuple[bool, StoredState | None]],
    ) -> None:
        state, error = line.seen, swapped.error
        assert state is not None, "a swap starts somewhere"
        if error is not None:
            if is_uncertain(error):
                line.lost.append(state)
                line.doubtful = True
                for claim in claims_of(line.waiting[0][0]):
                    line.unsure.setdefault(claim.ticket, line.sent)
            line.seen = None
            self._unanswered(line, error)
            return
        done, line.seen = swapped.result()
        if done:
            line.lost.clear()
            line.settle(state)
            record = None if line.seen is None else line.seen.record
            self._done(line, with_stored_fences(step, record), step)
            return
        line.fresh = line.seen is not None
        line.refusals += 1
        same = line.seen is not None and line.seen.mark == state.mark
        line.vain = line.vain + 1 if same else 0
        if (
            line.vain == MAX_UNCHANGED_REFUSALS
        ):  # more than a request that came late, or met another one
            self._failed(line, _refused_unchanged(line))
            return
        self._pause(line.resource, line.refusals, partial(self._again, line))

    def _unanswered(self, line: CommandQueue, error: BaseException) -> None:
        line.given_up += 1
        again = (
            isinstance(error, CasContention)
            and line.given_up < MAX_CONTENTION_RETRIES
            and (error.nothing_done or is_repeatable(line.waiting[0][0]))
        )
        if again:
            self._pause(
                line.resource, line.refusals + line.given_up, partial(self._again, line)
            )
        else:
            self._failed(line, error)

    def _again(self, line: CommandQueue, state: StoredState | None) -> None:
        # While something is lost only a load tells whether it still can happen.
        if state is not None and not line.lost:
            line.seen, line.fresh = state, True
        self._go_on(line)

    def _done(self, line: CommandQueue, reply: Reply, step: Step) -> None:
        command, pending = line.waiting.popleft()
        try:
            reply = self._dated(line, reply) if line.unsure else reply
            pending.set_result(self._told(command, reply, line))
            if step.wakes:
                self._wakes(line.resource, step.wakes)
        finally:
            self._next(line)

    def _dated(self, line: CommandQueue, reply: Reply) -> Reply:
        """A grant made by a request that seemed lost is as old as that request.

        How old, the frame of the store may not know, and its holder must not believe
        in more than what is left of it.
        """

        def dated(granted: Granted) -> Granted:
            now = granted.now
            for grant in granted.grants:
                sent = line.unsure.pop(grant.ticket, None)
                if sent is not None:
                    now = max(now, grant.since + self._cas.clock() - sent)
            return replace(granted, now=now)

        return map_granted(reply, dated)

    def _spoilt(self, line: CommandQueue, error: Exception) -> None:
        """A defect: nothing was sent, and the next one must have its turn."""
        line.seen = None
        self._failed(line, error)

    def _failed(self, line: CommandQueue, error: BaseException) -> None:
        if isinstance(error, BadRecord):  # the row does not know whose it is
            label = f"{line.resource.label}: "
            error.what = label + error.what.removeprefix(label)
        _, pending = line.waiting.popleft()
        try:
            pending.set_exception(without_proof(error) if line.doubtful else error)
        finally:
            self._next(line)

    def _next(self, line: CommandQueue) -> None:
        if line.waiting:
            self._begin(line)
        else:
            line.busy = False


def _refused_unchanged(line: CommandQueue) -> BackendUnavailable:
    """By a trigger, a policy on rows, or a link slower than any request may be."""
    return BackendUnavailable(
        what=f"{line.resource.label}: refused {MAX_UNCHANGED_REFUSALS} times, "
        "and stands as it was",
        hint="is there a trigger or a row policy on the tables?",
        nothing_done=not line.lost,
    )


def _stored_value(seat: MutexRecord | None) -> str | None:
    """What stands there; when it ends, the record knows."""
    return None if seat is None else seat.value
