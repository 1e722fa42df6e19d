"""Steps over a compare-and-set store: computed in this process, stored by one swap."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.arrivals import ArrivalNotices, is_new_entry_only
from aiorwlock_remote.cas.backoff import MAX_PAUSE, GoOn, longest_pause
from aiorwlock_remote.cas.port import (
    CasContention,
    CasStore,
    StoredState,
    SwapReply,
)
from aiorwlock_remote.cas.server_time import with_longer_leases, with_longer_push
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Downgrade,
    Granted,
    IllegalCommand,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.uncertainty import is_uncertain, without_proof
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, Unsupported
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

CACHE_SIZE = 4096
"""Resources whose last seen state is remembered, at most."""
MAX_CONTENTION_RETRIES = 3
"""Attempts of one step, if each attempt fails with ``CasContention``."""
MAX_UNCHANGED_REFUSALS = 30
"""A step fails after so many refusals in a row that show an unchanged row."""

WakeClients = Callable[[Resource, tuple[str, ...]], object]
Pause = Callable[[Resource, float, int, GoOn], None]


@dataclass(slots=True)
class CommandQueue:
    """The unanswered commands for one resource, in order, and its last seen state.

    Only the first command is being carried out; ``fresh`` and the fields after it
    describe the first command.
    """

    resource: Resource
    waiting: deque[tuple[Command, Pending[Reply]]] = field(
        default_factory=deque[tuple[Command, Pending[Reply]]]
    )
    busy: bool = False
    # The state that was seen last; None: the resource must be loaded.
    seen: StoredState | None = None
    # States from which swaps started whose answers were lost.
    lost: list[StoredState] = field(default_factory=list[StoredState])
    # Tickets that such swaps asked for, and when each swap was sent.
    unsure: dict[str, int] = field(default_factory=dict[str, int])
    # When the last swap was sent, by ``CasStore.clock``.
    sent: int = 0
    # Until when it stays in the cache, by ``CasStore.clock``.
    kept_until: int = 0
    # ``seen`` was read after the first command was begun.
    fresh: bool = False
    # The answer of one of the first command's swaps was lost.
    doubtful: bool = False
    # How many swaps of the first command were refused.
    refusals: int = 0
    # How many of the last refusals in a row showed the start version unchanged.
    unchanged: int = 0
    # How many requests of the first command failed.
    given_up: int = 0
    # The bound of the pauses between its attempts, in seconds.
    longest: float = MAX_PAUSE

    def settle(self, state: StoredState) -> None:
        # No lost swap can be carried out any more. A ticket that is not in the record
        # was not granted by one, and its next grant is a new one (test_stepper.py:
        # test_a_grant_is_no_older_for_a_request_that_came_to_nothing).
        if self.unsure:
            grants = () if state.record is None else state.record.grants
            tickets = {grant.ticket for grant in grants}
            self.unsure = {t: at for t, at in self.unsure.items() if t in tickets}


def may_guess(command: Command) -> bool:
    """Return True if the first swap may assume an unused resource, without a read."""
    return isinstance(command, Acquire)


def is_repeatable(command: Command) -> bool:
    """Return True if carrying the command out twice gives the same reply as once."""
    return isinstance(command, Acquire | Renew | Withdraw)


def no_pause(_: Resource, __: float, ___: int, go_on: GoOn) -> None:
    """Retry a refused swap at once, from the state that the refusal returned."""
    go_on(None)


class CasStepper:
    """``Store.step`` over a ``CasStore``. Belongs to one event loop or thread.

    An uncontended step is one request: its swap starts from the state that the step
    before stored, or from the guess that the resource is unused. After a refusal the
    step is computed again from the state that the refusal returned.

    Invariants, each with the test that fails without it (in ``tests/cas``):

    * The commands for one resource are carried out one after the other, in the order of
      the calls (test_stepper.py: test_commands_for_one_resource_keep_their_order).
    * A reply that changes nothing is never computed from a remembered state, which
      other clients may have changed: the state is loaded first (test_stepper.py:
      test_a_refused_step_goes_on_from_the_state_in_the_reply).
    * A swap whose answer was lost may be carried out at any later time, as long as its
      start version is stored. Before any further command is answered, the stepper has
      seen that this version is gone, or has swapped it away (test_stepper.py:
      test_a_lost_swap_from_a_version_is_burnt_before_an_answer).
    * A resource with a lost swap stays in the cache: no other object knows that the
      swap may still happen (test_cache_bounds.py: test_what_is_lost_is_not_forgotten).
    * An error says ``nothing_done`` only if no swap of its command was carried out or
      still can be (test_stepper.py:
      test_what_may_be_done_is_never_said_to_be_undone).
    * A grant of a request whose answer was lost counts as old as that request
      (test_stepper.py: test_a_grant_that_seemed_lost_is_as_old_as_its_request).
    * A release whose swap may have been carried out is not repeated: its second reply
      would be "not held" (test_stepper.py:
      test_a_release_that_may_be_done_is_not_repeated).
    * An unexpected exception fails one command, and the next command is begun
      (test_stepper.py: test_a_defect_is_raised_and_the_next_one_has_its_turn).
    """

    def __init__(
        self, cas: CasStore, wakes: WakeClients, pause: Pause = no_pause
    ) -> None:
        """Create a stepper that carries out commands by swaps of ``cas``.

        Args:
            cas: The store.
            wakes: Called after a step with the resource and ids of clients that may
                claim.
            pause: Called as ``pause(resource, longest, refusals, go_on)`` before a
                refused step is tried again, with the bound of the pause in seconds.
                Calls ``go_on`` now or later: with a state that was read meanwhile, or
                with None to continue from the state that the refusal returned.
        """
        self.arrivals: ArrivalNotices | None = None
        """Set if clients can be hinted to over a channel: then the holder's process
        gets a hint when another process joins the queue."""
        self._cas = cas
        self._wakes = wakes
        self._pause = pause
        self._queues: OrderedDict[Resource, CommandQueue] = OrderedDict()

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        queue = self._queue(resource)
        pending: Pending[Reply] = Pending()
        queue.waiting.append((command, pending))
        if not queue.busy:
            queue.busy = True
            self._begin(queue)
        return pending

    def saw(self, resource: Resource, state: StoredState) -> None:
        """Let the next step for the resource start from ``state``, as another read it.

        Ignored while a command for the resource is unanswered.
        """
        queue = self._queue(resource)
        if not queue.busy:
            queue.seen = state

    def known(self, resource: Resource) -> StoredState | None:
        """Return the state seen last, or None. Callable in any thread. No I/O."""
        queue = self._queues.get(resource)
        return None if queue is None else queue.seen

    def remember(self, resource: Resource, micros: int) -> None:
        """Keep the resource in the cache for so long, however many there are."""
        self._queue(resource).kept_until = self._cas.clock() + micros

    def unanswered(self) -> list[Resource]:
        """Return the resources for which a command has no reply yet."""
        return [queue.resource for queue in self._queues.values() if queue.waiting]

    async def answered(self, resource: Resource) -> None:
        """Wait until all commands sent so far for the resource have their replies."""
        queue = self._queues.get(resource)
        if queue is not None and queue.waiting:
            done: Pending[None] = Pending()
            queue.waiting[-1][1].add_done_callback(lambda _: done.set_result(None))
            await done

    def _adjust(self, command: Command, reply: Reply, queue: CommandQueue) -> Reply:  # noqa: ARG002 - for subclasses
        """Return the reply that the caller of a carried out ``command`` gets.

        ``queue``: the command's, to see when the command was sent and what was stored.
        """
        return reply

    def _queue(self, resource: Resource) -> CommandQueue:
        queue = self._queues.get(resource)
        if queue is None:
            self._make_room()
            queue = self._queues[resource] = CommandQueue(resource)
        self._queues.move_to_end(resource)
        return queue

    def _make_room(self) -> None:
        # Two are examined for each new one: after an outage the queues that must stay
        # are passed over without a walk through all of them, and the cache shrinks
        # again (test_cache_bounds.py:
        # test_many_at_once_are_forgotten_when_others_come).
        for _ in range(min(2, len(self._queues) + 1 - CACHE_SIZE)):
            resource, oldest = next(iter(self._queues.items()))
            kept = oldest.kept_until > self._cas.clock()
            if oldest.busy or oldest.lost or kept:
                self._queues.move_to_end(resource)
            else:
                del self._queues[resource]

    def _begin(self, queue: CommandQueue) -> None:
        queue.fresh, queue.doubtful = False, False
        queue.refusals, queue.unchanged, queue.given_up = 0, 0, 0
        queue.longest = MAX_PAUSE
        if queue.seen is None and not queue.lost and may_guess(queue.waiting[0][0]):
            queue.seen = self._cas.guess()
        self._go_on(queue)

    def _go_on(self, queue: CommandQueue) -> None:
        state = queue.seen
        if state is None or (queue.lost and not queue.fresh):
            self._load(queue)
            return
        if queue.lost:
            queue.lost = [lost for lost in queue.lost if lost.mark == state.mark]
        if queue.fresh and not queue.lost:
            queue.settle(state)
        try:
            at = self._cas.times(state)
            command = with_longer_leases(queue.waiting[0][0], at.slack)
            step = transition(
                *(state.record, state.seat, command, at.now, at.floor, at.wall),
                semaphore=queue.resource.is_semaphore,
            )
            step = with_longer_push(step, at.slack)
        except IllegalCommand as exc:
            # The remembered state may be outdated: the command may be legal after all.
            if queue.fresh:
                self._failed(queue, exc)
            else:
                self._load(queue)
            return
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            self._failed_by_defect(queue, exc)
            return
        same = step.record is (state.record or UNUSED_DOORMAN)
        # The expiry of the mutex record is not stored: it follows from the doorman.
        seat, before = step.seat, state.seat
        stays = seat is before or (
            seat is not None and before is not None and seat.value == before.value
        )
        same = same and stays
        record = step.record
        if self.arrivals is not None and not stays:
            to = None if step.pushed is None else step.wakes[0]
            record = self.arrivals.turned(record, to)
        queue.sent = at.sent
        # A lost swap that can still happen starts from this very version. A swap that
        # changes nothing but the version makes sure that the store refuses it.
        if not same or (queue.fresh and queue.lost):
            try:
                swapped = self._cas.swap(
                    queue.resource, state, record, step.seat, at, step.wakes
                )
            except Exception as exc:  # noqa: BLE001 - handed to the caller
                self._failed_by_defect(queue, exc)
                return
            swapped.add_done_callback(partial(self._swapped, queue, step))
        elif queue.fresh:
            self._done(queue, step.reply, step)
        else:
            self._load(queue)

    def _load(self, queue: CommandQueue) -> None:
        self._cas.load(queue.resource).add_done_callback(partial(self._loaded, queue))

    def _loaded(self, queue: CommandQueue, loaded: Pending[StoredState]) -> None:
        error = loaded.error
        if error is not None:
            queue.seen = None
            if isinstance(error, BadRecord | Unsupported):
                # The read changed nothing. If an earlier swap of this command may have
                # been carried out, ``without_proof`` takes this back.
                error.nothing_done = True
            self._unanswered(queue, error)
            return
        queue.seen, queue.fresh = loaded.result(), True
        self._go_on(queue)

    def _swapped(
        self,
        queue: CommandQueue,
        step: Step,
        swapped: Pending[SwapReply],
    ) -> None:
        state, error = queue.seen, swapped.error
        assert state is not None, "a swap starts from a state"
        if error is not None:
            if is_uncertain(error):
                queue.lost.append(state)
                queue.doubtful = True
                for claim in claims_of(queue.waiting[0][0]):
                    queue.unsure.setdefault(claim.ticket, queue.sent)
                label = queue.resource.label
                why = str(error)
                log_event(log, "swap_lost", logging.DEBUG, resource=label, error=why)
            queue.seen = None
            self._unanswered(queue, error)
            return
        done, queue.seen = swapped.result()
        if done:
            queue.lost.clear()
            if queue.unsure:
                queue.settle(state)
            record = None if queue.seen is None else queue.seen.record
            reply = step.reply
            if record is not None and record is not step.record:
                reply = with_stored_fences(reply, record)
            self._done(queue, reply, step)
            if self.arrivals is not None and is_new_entry_only(
                state.record, step.record
            ):
                holder = self.arrivals.behind(step.record)
                if holder is not None:
                    self._wakes(queue.resource, (holder,))
            return
        queue.fresh = queue.seen is not None
        queue.refusals += 1
        same = queue.seen is not None and queue.seen.mark == state.mark
        queue.unchanged = queue.unchanged + 1 if same else 0
        # A single such refusal may have been a request that came too late, or one that
        # met another transaction.
        if queue.unchanged == MAX_UNCHANGED_REFUSALS:
            self._failed(queue, _refused_unchanged(queue))
            return
        self._log_retry(queue, None)
        self._rest(queue, queue.refusals)

    def _unanswered(self, queue: CommandQueue, error: BaseException) -> None:
        queue.given_up += 1
        again = (
            isinstance(error, CasContention)
            and queue.given_up < MAX_CONTENTION_RETRIES
            and (error.nothing_done or is_repeatable(queue.waiting[0][0]))
        )
        if again:
            self._log_retry(queue, error)
            self._rest(queue, queue.refusals + queue.given_up)
        else:
            self._failed(queue, error)

    def _log_retry(self, queue: CommandQueue, error: BaseException | None) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "swap_retried",
                logging.DEBUG,
                resource=queue.resource.label,
                refusals=queue.refusals,
                unchanged=queue.unchanged,
                error=error or "refused",
            )

    def _rest(self, queue: CommandQueue, attempts: int) -> None:
        if queue.seen is not None:
            queue.longest = longest_pause(queue.waiting[0][0], queue.seen)
        go_on = partial(self._again, queue)
        self._pause(queue.resource, queue.longest, attempts, go_on)

    def _again(self, queue: CommandQueue, state: StoredState | None) -> None:
        # The state of a pause may have been read before the lost swap was carried out:
        # only a load that begins now shows whether it still can happen.
        if state is not None and not queue.lost:
            queue.seen, queue.fresh = state, True
        self._go_on(queue)

    def _done(self, queue: CommandQueue, reply: Reply, step: Step) -> None:
        command, pending = queue.waiting.popleft()
        try:
            reply = self._with_age(queue, reply) if queue.unsure else reply
            pending.set_result(self._adjust(command, reply, queue))
            if step.wakes:
                self._wakes(queue.resource, step.wakes)
        finally:
            self._next(queue)

    def _with_age(self, queue: CommandQueue, reply: Reply) -> Reply:
        # The store's clock may not show how long ago the request was sent, and the
        # holder must not count on more than the rest of its lease.
        def aged(granted: Granted) -> Granted:
            now = granted.now
            for grant in granted.grants:
                sent = queue.unsure.pop(grant.ticket, None)
                if sent is not None:
                    now = max(now, grant.since + self._cas.clock() - sent)
            return replace(granted, now=now)

        return map_granted(reply, aged)

    def _failed_by_defect(self, queue: CommandQueue, error: Exception) -> None:
        # No request was sent: nothing is lost, and the next command loads the state.
        queue.seen = None
        self._failed(queue, error)

    def _failed(self, queue: CommandQueue, error: BaseException) -> None:
        if isinstance(error, BadRecord):  # the row's reader does not know the resource
            label = f"{queue.resource.label}: "
            error.what = label + error.what.removeprefix(label)
        _, pending = queue.waiting.popleft()
        try:
            pending.set_exception(without_proof(error) if queue.doubtful else error)
        finally:
            self._next(queue)

    def _next(self, queue: CommandQueue) -> None:
        if queue.waiting:
            self._begin(queue)
        else:
            queue.busy = False


def with_stored_fences(reply: Reply, record: Doorman) -> Reply:
    """Return the reply to a step with its grants as they are in ``record``.

    ``record`` is the doorman as the store stored it, which may have chosen another
    fence.
    """

    def stored(grant: Grant) -> Grant:
        return record.grant(grant.ticket) or grant

    def granted(entry: Granted) -> Granted:
        return replace(entry, grants=tuple(map(stored, entry.grants)))

    if isinstance(reply, Granted):
        return granted(reply)
    if isinstance(reply, Renewed):
        outcomes = tuple(
            stored(one) if isinstance(one, Grant) else one for one in reply.outcomes
        )
        return replace(reply, outcomes=outcomes)
    return map_granted(reply, granted)


def map_granted(reply: Reply, change: Callable[[Granted], Granted]) -> Reply:
    """Return the reply with each ``Granted`` in it replaced by ``change(granted)``."""
    return map_answers(
        reply, lambda answer: change(answer) if isinstance(answer, Granted) else answer
    )


def map_answers(reply: Reply, change: Callable[[Answer], Answer]) -> Reply:
    """Return the reply with each answer to an acquire replaced by ``change``'s."""
    if isinstance(reply, Granted | Waiting | Refused):
        return change(reply)
    if isinstance(reply, Released) and reply.then:
        return replace(reply, then=tuple(change(answer) for answer in reply.then))
    return reply


def claims_of(command: Command) -> tuple[Claim, ...]:
    """Return the claims that the command asks to be granted; () if it has none."""
    match command:
        case Acquire():
            return command.claims
        case Release():
            return tuple(claim for acquire in command.then for claim in acquire.claims)
        case Downgrade() | Upgrade() | Adopt():
            return (command.claim,)
        case _:
            return ()


def _refused_unchanged(queue: CommandQueue) -> BackendUnavailable:
    return BackendUnavailable(
        what=f"{queue.resource.label}: the swap was refused {MAX_UNCHANGED_REFUSALS} "
        "times although the row did not change",
        hint="is there a trigger or a row policy on the tables? is the link slower "
        "than any request may be?",
        nothing_done=not queue.lost,
    )
