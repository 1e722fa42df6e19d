"""The scripts of a semaphore do what the core says, in every reply and stored field."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from aiorwlock_remote.errors import BackendError
from tests.backends.redis.differential import (
    PermitComparison,
    edited,
    permit_short_cuts_off,
)
from tests.long import mostly_long
from tests.servers.redis import RedisServer

DB = 7
WORLDS = 2  # of each kind
COMMANDS = 3_500  # 2 * 2 * 3,500 = 14,000 in all
CONTROL_COMMANDS = 3_000  # to each control, four times
LEAST = 2
SEEN = {
    *("Acquire Granted", "Acquire Waiting", "Release Waiting", "Release Granted"),
    *(f"Acquire Refused {why}" for why in ("held", "ahead", "full", "barred")),
    *(f"Release Refused {why}" for why in ("held", "ahead", "full")),
    *("Release Released", "Withdraw Withdrawn", "Renew Renewed", "ForceRelease Forced"),
    *("Adopt Granted", "Adopt NotHeld", "Downgrade NoneType", "Upgrade NoneType"),
    *("heard", "rung", "crowd", "queue", "several called", "limits differ", "in part"),
}


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_contended_semaphores(
    redis_server: RedisServer, seed: int
) -> None:
    comparison = PermitComparison(redis_server.port, DB)
    comparison.run(COMMANDS, seed)
    comparison.close()
    rare = {what for what in SEEN if comparison.seen[what] < LEAST}
    assert not rare, f"hardly seen: {rare} of {comparison.seen}"


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_quiet_semaphores(
    redis_server: RedisServer, seed: int
) -> None:
    comparison = PermitComparison(redis_server.port, DB)
    comparison.run(COMMANDS, seed, quiet=True)
    comparison.close()


@pytest.mark.parametrize("quiet", [False, True])
def test_without_short_cuts(redis_server: RedisServer, *, quiet: bool) -> None:
    """The long way alone does the same."""
    comparison = PermitComparison(redis_server.port, DB, change=permit_short_cuts_off)
    comparison.run(COMMANDS // 2, 99, quiet=quiet)
    comparison.close()


@pytest.mark.parametrize("fault", [False, True])
def test_exact_renewals(redis_server: RedisServer, *, fault: bool) -> None:
    """A lease may become shorter; a script with the fault does not get away."""
    rule, broken = "if lease and lease < 0 then", "if false then"
    change = partial(edited, old=rule, new=broken) if fault else str
    comparison = PermitComparison(redis_server.port, DB, change=change)
    comparison.exact = True
    try:
        with pytest.raises(AssertionError) if fault else nullcontext():
            comparison.run(CONTROL_COMMANDS // 4, 5)
    finally:
        comparison.close()


# One rule broken, or one short cut taken where it may not be.
FAULTS = (
    ("entry.claim_until <= now", "entry.claim_until < now"),
    ("tonumber(step.first[2]) <= now", "tonumber(step.first[2]) < now"),
    ("if entry.expires <= now then", "if entry.expires < now then"),
    ("for held in pairs(doorman.limits) do limit = math.min(limit, held) end", ""),
    (
        "limit, reserved = math.min(limit, other.limit), reserved + other.waiting",
        "reserved = reserved + other.waiting",
    ),
    (
        "limit, reserved = math.min(limit, other.limit), reserved + other.waiting",
        "limit = math.min(limit, other.limit)",
    ),
    ("if not queue.missed_claim(other) then", "if true then"),
    ("limit = math.min(limit, entry.limit)", ""),
    ("reserved = reserved + entry.waiting", ""),
    ("if entry.reached ~= doorman.last and not", "if false and not"),
    ("if doorman.barred_until > now then return 0 end", ""),
    ("if barred or limit <= reserved then", "if limit <= reserved then"),
    ("fence = fence + i - 1", "fence = fence"),
    ("record.set('last', fence + count - 1)", "record.set('last', fence)"),
    ("local left = #asking - count + ask.more", "local left = ask.more"),
    ("left > 0 and ask.may_queue", "left > 0"),
    ("(asking[count + 1] or ask.claims[1]).who", "ask.claims[1].who"),
    ("limit = old.limit", "limit = 1"),
    ("waiting >= ask.max_waiters", "waiting > ask.max_waiters"),
    ("math.min(2 * window, ask.entry_ttl)", "2 * window"),
    ("expires and math.max(expires,", "expires and math.max(0,"),
    ("if #all > 4 then", "if #all > 2 then"),
    ("unreached[client_id], any_unreached = true, true", "any_unreached = false"),
    ("record.note(fence, holder, 'forced')", "record.note(0, holder, 'forced')"),
    ("format('%d', math.ceil(ends / 1000))", "format('%d', ends / 1000)"),
    ("if not step.first and doorman.held > 0 then", "if false then"),
    ("call('PERSIST', KEYS[i])", ""),
    ("record.count(permit.limit, -1)", "record.count(permit.limit, 0)"),
    ("if delay > 0 then", "if false then"),
    ("    soon = first\n", ""),
    ("if other.number >= entry.number then break end", ""),
    ("elseif mode == 'r' then", "elseif false then"),
    ("> 0 then call('DEL', PERMITS, QUEUE)", "> 0 then call('DEL', QUEUE)"),
    ("if not (permit and (permit.gone or permit.moved)) then", "if true then"),
    ("if op ~= 'o' and record.permit_of(ARGV[4]) then illegal() end", ""),
    ("      foreign = permits.take_out(foreign, ARGV[i])\n", ""),
    ("record.alter(entry, 'limit', ask.limit)", ""),
    ("permits.limit_for(entry) <= doorman.held and", "doorman.held > 0 and"),
    # Short cuts.
    ("and (stored[6] or '') == ''\n", "\n"),
    ("and not ARGV[6] and (ARGV[4] == ''", "and (ARGV[4] == ''"),
    ("(ARGV[4] == '' or ARGV[4] == 'p')", "true"),
    ("(tonumber(barred) or now) < now) then", "true) then"),
    ("or try('GET', MUTEX) ~= our_mutex\n", "\n"),
    ("elseif held ~= 0 or try('GET', MUTEX) then", "elseif held ~= 0 then"),
    ("or tonumber(first[2]) <= now then", "then"),
    ("(limit or most) == most and held < tonumber(most)", "held < tonumber(most)"),
    ("(limit or most) == most and held < tonumber(most)", "(limit or most) == most"),
    ("if last >= now then fence, fence_text", "if false then fence, fence_text"),
    (
        "try('ZADD', PERMITS, 'NX', text, ARGV[5]) == 1",
        "try('ZADD', PERMITS, text, ARGV[5])",
    ),
    ("if held == 0 then call('PEXPIREAT', PERMITS, stored[9]) end", ""),
    ("if held == 0 or ends > tonumber(latest) then", "if held == 0 then"),
    ("then latest = others[#others - 2] end", "then latest = others[#others] end"),
    ("format('%s:%d', limit, held - 1)", "limits"),
)


def test_the_unchanged_scripts_pass_the_controls(redis_server: RedisServer) -> None:
    """The meta-check: it is the planted faults that make the controls fail."""
    tell(redis_server, str)


@pytest.mark.parametrize(("right", "wrong"), mostly_long(FAULTS, 6))
def test_a_planted_fault_is_found(
    redis_server: RedisServer, right: str, wrong: str
) -> None:
    """A script with a fault does not get away with it."""
    with pytest.raises((AssertionError, BackendError)):
        tell(redis_server, partial(edited, old=right, new=wrong))


def tell(server: RedisServer, change: Callable[[str], str]) -> None:
    """The same histories each time."""
    for seed in (72, 73):
        for quiet in (False, True):
            comparison = PermitComparison(server.port, DB, change=change)
            try:
                comparison.run(CONTROL_COMMANDS, seed, quiet=quiet)
            finally:
                comparison.close()
