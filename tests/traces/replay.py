"""Replay: is a recorded history a behaviour of the core, step by step?

For each request: the core's ``transition`` of the state that the store had, with the
store's time, must give the state that the store had then, and the reply that the caller
received. Between the requests nothing may change, but for what the store lets expire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import replace as with_fields
from pprint import pformat

from aiorwlock_remote.cas.server_time import with_longer_leases, with_longer_push
from aiorwlock_remote.cas.stepper import map_answers, with_stored_fences
from aiorwlock_remote.cas.table_cas import relative_fences, with_fence
from aiorwlock_remote.core.commands import (
    Answer,
    Command,
    Granted,
    IllegalCommand,
    NotHeld,
    Released,
    Renewed,
    Reply,
    Waiting,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, MutexRecord
from aiorwlock_remote.core.transition import Step, skip_unreachable, transition
from aiorwlock_remote.core.value import replace
from tests.traces.history import NOTHING, Request, State


@dataclass(frozen=True, slots=True)
class Rules:
    """What a store adds to the core.

    Attributes:
        chooses_fences: The server chooses the fence of a new phase, above all before.
        keeps_ends: The mutex record has an end of its own, rounded up to so many
            microseconds; 0: it has none.
        forgets_idle: A record without holders and waiters need not be stored.
        keeps_idle: No step removes such a record: it ends later, by itself.
        own_fields: Fields that the store writes beside the core's (``Doorman.extra``).
        explains_losses: The store may know that a grant did not expire but was ended.
    """

    chooses_fences: bool = False
    keeps_ends: int = 0
    forgets_idle: bool = False
    keeps_idle: bool = False
    own_fields: frozenset[str] = frozenset()
    explains_losses: bool = False


REDIS = Rules(keeps_ends=1000)
SQLITE = Rules()
POSTGRESQL = Rules(chooses_fences=True, own_fields=frozenset({"ear"}))
CASSANDRA = Rules(
    chooses_fences=True,
    forgets_idle=True,
    own_fields=frozenset({"burnt_until"}),
    explains_losses=True,
)
ETCD = Rules(
    chooses_fences=True,
    forgets_idle=True,
    keeps_idle=True,
    own_fields=frozenset({"ear"}),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first request of a history that the core would have answered otherwise."""

    what: str
    request: Request
    expected: object
    seen: object
    earlier: tuple[Command, ...] = ()

    def __str__(self) -> str:
        request = self.request
        fields = {
            "resource": request.resource,
            "process": request.process,
            "at": request.now,
            "after": self.earlier,
            "before": request.before,
            "command": request.command,
            "differs": differing(self.expected, self.seen),
            "expected": self.expected,
            "seen": self.seen,
        }
        lines = (f"{name}: {pformat(shown)}" for name, shown in fields.items())
        return "\n".join([self.what, *lines])


def differing(expected: object, seen: object) -> dict[str, tuple[object, object]]:
    """Return the fields in which two values differ; none unless of one dataclass."""
    if type(expected) is not type(seen) or not is_dataclass(expected):
        return {}
    pairs = {
        f.name: (getattr(expected, f.name), getattr(seen, f.name))
        for f in fields(expected)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Differs(Exception):
    """Raised with what differs, what the core expects, and what was recorded."""

    def __init__(self, what: str, expected: object, seen: object) -> None:
        super().__init__(what)
        self.difference = what, expected, seen


def replay(
    history: Sequence[Request], rules: Rules
) -> tuple[list[Reply | None], Difference | None]:
    """Replay the requests of one resource in their order.

    Return the reply that the core gives to each request (None: it is illegal), and the
    first difference, if there is one.
    """
    replies: list[Reply | None] = []
    last: State | None = None
    for number, request in enumerate(history):
        try:
            if last is not None:
                _check_unchanged(last, request, rules)
            replies.append(replay_one(request, rules))
        except Differs as exc:
            earlier = tuple(
                past.command for past in history[max(0, number - 3) : number]
            )
            return replies, Difference(
                exc.difference[0], request, *exc.difference[1:], earlier
            )
        last = request.after
    return replies, None


def replay_one(request: Request, rules: Rules) -> Reply | None:
    """Return the core's reply to a request; None: it is illegal.

    Raises:
        Differs: The core stores another state, or gives another reply.
    """
    before = request.before
    command = with_longer_leases(request.command, request.slack)
    times = request.now, request.floor, request.wall
    try:
        step = transition(before.record, before.seat, command, *times)
    except IllegalCommand as exc:
        if not request.illegal:
            raise Differs(
                "an illegal command was carried out", exc, request.reply
            ) from exc
        _check_state(before, request.after, rules)
        return None
    if request.illegal:
        raise Differs("a legal command was refused as illegal", step.reply, None)
    answer = step.reply
    step = with_longer_push(step, request.slack)
    if request.called is not None:
        step = _check_calls(step, request, request.called)
    step = _with_stored_fence(step, request, rules)
    _check_state(State(step.record, step.seat), request.after, rules)
    record = request.after.record
    expected = answer if record is None else with_stored_fences(answer, record)
    if request.reply is not None:
        _check_reply(expected, request.reply, rules)
    return expected


def _check_calls(
    step: Step, request: Request, called: Sequence[tuple[str, bool]]
) -> Step:
    # Messages are sent one after the other; who does not hear is passed over.
    left = list(called)
    while step.wakes:
        deaf: set[str] = set()
        for client in step.wakes:
            if client == request.own:
                continue
            if not left or left[0][0] != client:
                raise Differs("other clients were called", step.wakes, called)
            if not left.pop(0)[1]:
                deaf.add(client)
        if not deaf:
            break
        step = skip_unreachable(step, deaf, request.now, request.floor)
    if left:
        raise Differs("more clients were called", step.wakes, called)
    return step


def _with_stored_fence(step: Step, request: Request, rules: Rules) -> Step:
    before, after = request.before.record or UNUSED_DOORMAN, request.after.record
    begins = step.record.last > before.last
    if not rules.chooses_fences or after is None or not begins:
        return step
    if after.last <= before.last or after.last < step.record.last:
        what = "the fence of a new phase is not above all before"
        raise Differs(what, step.record.last, after.last)
    record = with_fence(relative_fences(step.record, before.last), after.last)
    return replace(step, record=record)


def _check_state(expected: State, seen: State, rules: Rules) -> None:
    wanted, found = _plain(expected.record, rules), _plain(seen.record, rules)
    if wanted != found:
        raise Differs("another record is stored", wanted, found)
    if _seat(expected.seat, rules) != _seat(seen.seat, rules):
        raise Differs("another mutex record is stored", expected.seat, seen.seat)


def _check_unchanged(last: State, request: Request, rules: Rules) -> None:
    before = request.before
    if _plain(last.record, rules) != _plain(before.record, rules):
        what = "the record changed between two commands"
        raise Differs(what, last.record, before.record)
    if _seat(last.seat, rules) == _seat(before.seat, rules):
        return
    ends = None if last.seat is None else _seat(last.seat, rules)[1]
    # The server deletes a mutex record at its end.
    if not (rules.keeps_ends and before.seat is None and ends and ends <= request.now):
        what = "the mutex record changed between two commands"
        raise Differs(what, last.seat, before.seat)


def _plain(record: Doorman | None, rules: Rules) -> Doorman:
    # Without the order of grants, which has no meaning, and what only people read.
    if record is None:
        return UNUSED_DOORMAN
    if rules.forgets_idle and not (record.grants or record.queue or record.upgrader):
        return UNUSED_DOORMAN
    extra = tuple(field for field in record.extra if field[0] not in rules.own_fields)
    grants = tuple(sorted(record.grants, key=lambda grant: grant.ticket))
    record = replace(record, grants=grants, extra=extra)
    return replace(record, created=0, updated=0) if rules.forgets_idle else record


def _seat(seat: MutexRecord | None, rules: Rules) -> tuple[str, int | None]:
    if seat is None:
        return "", None
    if not rules.keeps_ends or seat.expires is None:
        return seat.value, None
    return seat.value, -(-seat.expires // rules.keeps_ends) * rules.keeps_ends


def _check_reply(expected: Reply, seen: Reply, rules: Rules) -> None:
    if not agree(expected, seen, rules):
        raise Differs("the caller received another reply", expected, seen)


def agree(expected: Reply, seen: Reply, rules: Rules) -> bool:
    """Return whether a caller may receive ``seen`` when the core says ``expected``."""
    if not rules.chooses_fences:
        return expected == seen
    if rules.explains_losses:
        expected, seen = _without_reasons(expected), _without_reasons(seen)
    times = zip(_clock_readings(expected), _clock_readings(seen), strict=False)
    # Later readings of the store's clock let a holder believe for a shorter time.
    later = all(read >= computed for computed, read in times)
    return later and _without_clock(expected) == _without_clock(seen)


def _clock_readings(reply: Reply) -> list[int]:
    found: list[int] = []

    def read(answer: Answer) -> Answer:
        found.append(answer.now if isinstance(answer, Granted | Waiting) else 0)
        return answer

    map_answers(reply, read)
    return found


def _without_clock(reply: Reply) -> Reply:
    def timeless(answer: Answer) -> Answer:
        if isinstance(answer, Granted):
            return replace(answer, now=0, latest=0)
        return replace(answer, now=0) if isinstance(answer, Waiting) else answer

    return map_answers(reply, timeless)


def _without_reasons(reply: Reply) -> Reply:
    match reply:
        case NotHeld():
            return NotHeld()
        case Released(held=False):
            return replace(reply, reason="expired")
        case Renewed():
            return Renewed(
                tuple(
                    NotHeld() if isinstance(one, NotHeld) else one
                    for one in reply.outcomes
                )
            )
        case _:
            return reply


# -------------------------------------------------------------------------- orders


def by_resource(requests: Iterable[Request]) -> dict[str, list[Request]]:
    """Return the requests of each resource, in the order in which they come."""
    found: defaultdict[str, list[Request]] = defaultdict(list)
    for request in requests:
        found[request.resource].append(request)
    return dict(found)


class Forked(Exception):
    """Raised if two changes were made from one version, or a version was never made."""


def in_order(requests: Iterable[Request], rules: Rules) -> list[Request]:
    """Return the requests of one resource in the order of the store's versions.

    A change that may have been carried out is left out unless a later request started
    from what it stored.

    Raises:
        Forked: There is no such order.
    """
    return list(_Chain(list(requests), rules).walk())


class _Chain:
    def __init__(self, requests: list[Request], rules: Rules) -> None:
        self._same = same_state(rules)
        self._keeps_idle = rules.keeps_idle
        self._changes: defaultdict[Hashable, list[Request]] = defaultdict(list)
        self._doubtful: defaultdict[Hashable, list[Request]] = defaultdict(list)
        self._reads: defaultdict[Hashable, list[Request]] = defaultdict(list)
        # What was seen of each version.
        self._seen: dict[Hashable, State] = {}
        for request in requests:
            self._seen.setdefault(request.start, request.before)
        for request in sorted(requests, key=lambda one: one.now):
            if request.start == request.end:
                self._reads[request.start].append(request)
            elif request.certain:
                self._changes[request.start].append(request)
            elif request.end is not None and request.end in self._seen:
                # A version is never used twice: another request started from this one.
                done = with_fields(request, after=self._seen[request.end])
                self._changes[request.start].append(done)
            else:
                self._doubtful[request.start].append(request)
        self._made = {
            change.end for changes in self._changes.values() for change in changes
        }
        self._left = sum(map(len, self._changes.values()))

    def walk(self) -> Iterator[Request]:
        version: Hashable = None
        while True:
            yield from self._reads.pop(version, ())
            change = self._change_from(version)
            if change is None and self._has_ended(version):
                version = None
                continue
            if change is None:
                break
            yield change
            version = change.end
        if self._left or self._reads:
            raise Forked(f"{self._left} changes start from versions that nobody made")

    def _has_ended(self, version: Hashable) -> bool:
        # A row that has nothing but a version ends by itself (Cassandra's placeholder).
        empty = version is not None and self._seen.get(version, NOTHING) == NOTHING
        return empty and bool(self._changes.get(None) or self._doubtful.get(None))

    def _change_from(self, version: Hashable) -> Request | None:
        changes = self._changes.get(version, [])
        # The state of a resource that is not stored has no version of its own, and
        # comes again and again.
        if version is not None and len(changes) > 1:
            raise Forked(f"two changes were made from one version: {changes}")
        if changes:
            self._left -= 1
            return changes.pop(0)
        for change in self._doubtful.get(version, ()):
            # Whatever removes the record leaves no version, and is not the only one.
            removes = not self._keeps_idle and self._same(change.after, NOTHING)
            if self._changes.get(None) and removes:
                self._doubtful[version].remove(change)
                return with_fields(change, after=NOTHING, end=None)
            for seen, state in self._seen.items() if change.end is None else ():
                if seen is None or seen in self._made:
                    continue
                if self._same(change.after, state):
                    self._made.add(seen)
                    self._doubtful[version].remove(change)
                    return with_fields(change, after=state, end=seen)
        return None


def same_state(rules: Rules) -> Callable[[State, State], bool]:
    """Return a comparison of an intended state with a stored one, whatever fence the
    server chose.
    """

    def same(intended: State, stored: State) -> bool:
        wanted, found = _plain(intended.record, rules), _plain(stored.record, rules)
        if rules.chooses_fences:
            wanted, found = _without_fences(wanted), _without_fences(found)
        return wanted == found and _seat(intended.seat, rules) == _seat(
            stored.seat, rules
        )

    return same


def _without_fences(record: Doorman) -> Doorman:
    grants = tuple(replace(grant, fence=0) for grant in record.grants)
    return replace(record, last=0, grants=grants)


def check_replies(
    received: dict[tuple[str, str, Command], list[Reply]],
    replayed: Iterable[tuple[Request, Reply | None]],
) -> Difference | None:
    """Return the first reply to a caller that is none of the core's.

    For a store that does not say which of several equal requests a reply belongs to.
    """
    given: defaultdict[tuple[str, str, Command], list[Reply]] = defaultdict(list)
    by_key: dict[tuple[str, str, Command], Request] = {}
    for request, reply in replayed:
        key = request.process, request.resource, request.command
        by_key[key] = request
        if reply is not None:
            given[key].append(reply)
    for key, replies in received.items():
        for reply in replies:
            if reply not in given[key]:
                what = "the caller received another reply"
                of_key = by_key.get(key)
                if of_key is None:
                    raise Forked(
                        f"a reply to a request that the server never had: {key}"
                    )
                return Difference(what, of_key, given[key], reply)
            given[key].remove(reply)
    return None
