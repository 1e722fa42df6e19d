"""The scripts do what the core says, in every reply and every stored field."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from aiorwlock_remote.errors import BadRecord
from tests.backends.redis.differential import (
    Comparison,
    edited,
    plain_off,
    short_cuts_off,
    without_plain,
)
from tests.long import mostly_long
from tests.servers.redis import RedisServer

DB = 9
WORLDS = 8  # of each kind
COMMANDS = 6_500  # 8 * (6,500 + 2 * 3,200) = 103,200 in all
FEWER = 3_200
SEEN = {
    *("Acquire Granted", "Acquire Waiting", "Release Waiting", "Release Granted"),
    *(f"Acquire Refused {why}" for why in ("held", "ahead", "full", "barred")),
    *(f"Release Refused {why}" for why in ("held", "ahead", "full")),
    *("Acquire Refused other mode", "Release Released", "Withdraw Withdrawn"),
    *("Renew Renewed", "ForceRelease Forced", "Downgrade Granted", "Downgrade NotHeld"),
    *("Adopt Granted", "Adopt NotHeld"),
    *("Downgrade NoneType", "Upgrade NoneType"),  # illegal
    *("Upgrade Granted", "Upgrade NotHeld", "Upgrade Waiting", "Upgrade Conflict"),
    *("Upgrade Refused held", "heard", "rung", "crowd", "queue"),
    *("pushed", "pushed to the caller", "confirmed Granted", "confirmed NotHeld"),
}
BUSY = {"pushed", "pushed to the caller", "confirmed Granted", "confirmed NotHeld"}
LEAST = 2
CONTROL_COMMANDS = 4_000  # to each control, four times


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_contended_locks(
    redis_server: RedisServer, seed: int
) -> None:
    """Contended, crowded, interfered with; every kind of answer is among them."""
    comparison = Comparison(redis_server.port, DB)
    comparison.run(COMMANDS, seed)
    comparison.close()
    rare = {what for what in SEEN if comparison.seen[what] < LEAST}
    assert not rare, f"hardly seen: {rare} of {comparison.seen}"


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_quiet_locks(redis_server: RedisServer, seed: int) -> None:
    """What the short cuts are for."""
    comparison = Comparison(redis_server.port, DB)
    comparison.run(FEWER, seed, quiet=True)
    comparison.close()


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_busy_locks(redis_server: RedisServer, seed: int) -> None:
    """From process to process, by messages."""
    comparison = Comparison(redis_server.port, DB)
    comparison.run(FEWER, seed, busy=True)
    comparison.close()
    rare = {what for what in BUSY if comparison.seen[what] < 20 * LEAST}
    assert not rare, f"hardly seen: {rare} of {comparison.seen}"


@pytest.mark.parametrize("seed", mostly_long(range(1, WORLDS + 1), 4))
def test_random_histories_of_calm_locks(redis_server: RedisServer, seed: int) -> None:
    """Mostly of interest is a writer alone: what the shortest way is for."""
    comparison = Comparison(redis_server.port, DB)
    comparison.run(FEWER, seed, calm=True)
    comparison.close()
    assert all(comparison.seen[f"plain, {what}"] > 100 for what in ("held", "free"))


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        *product(["wild", "quiet", "busy"], [short_cuts_off]),
        *product(["quiet", "calm"], [plain_off]),
    ],
)
def test_without_short_cuts(
    redis_server: RedisServer, kind: str, without: Callable[[str], str]
) -> None:
    """The long way alone does the same, and so does the middle one."""
    comparison = Comparison(redis_server.port, DB, change=without)
    comparison.run(FEWER, 99, **({} if kind == "wild" else {kind: True}))
    comparison.close()


@pytest.mark.parametrize("seed", [1, 3])
def test_beside_a_version_that_does_not_know_plain(
    redis_server: RedisServer, seed: int
) -> None:
    """It leaves the field behind, with the time of a step that is not the last."""
    run_beside_older(redis_server, seed, str)


def test_plain_is_believed_at_its_time_only(redis_server: RedisServer) -> None:
    """The control: without the comparison, what the other version did is ignored."""
    change = partial(edited, old=" or plain ~= updated\n", new="\n")
    with pytest.raises((AssertionError, BadRecord)):
        run_beside_older(redis_server, 3, change)


def run_beside_older(
    server: RedisServer, seed: int, change: Callable[[str], str]
) -> None:
    """Every other command of calm histories is the older version's."""
    comparison = Comparison(server.port, DB, change=change, older=without_plain)
    try:
        comparison.run(FEWER, seed, calm=True)
    finally:
        comparison.close()


# One rule broken, or one short cut taken where it may not be.
FAULTS = (
    ("entry.claim_until <= now", "entry.claim_until < now"),
    ("writer.expires <= now", "writer.expires < now"),
    ("entry.expires <= now", "entry.expires < now"),
    ("step.soonest <= now", "step.soonest < now"),
    ("entry.number <= doorman.admit_upto", "entry.number < doorman.admit_upto"),
    ("(doorman.admit_until == 0 or now < doorman.admit_until)", "true"),
    ("if doorman.admit_until > now then record.set", "if false then record.set"),
    ("math.max(doorman.last + 1, now)", "math.max(doorman.last, now) + 1"),
    ("math.min(2 * window, ask.entry_ttl)", "2 * window"),
    ("doorman.readers > 4 then", "doorman.readers > 3 then"),
    ("waiting >= ask.max_waiters", "waiting > ask.max_waiters"),
    ("expires and math.max(expires, now + lease)", "expires and now + lease"),
    (
        "doorman.upgrader.ticket == ticket then doorman.upgrader = nil",
        "false then doorman.upgrader = nil",
    ),
    ("unreached[client_id], any_unreached = true, true", "any_unreached = false"),
    ("local vacate = turns > MAX_LOCAL_TURNS", "local vacate = false"),
    ("if who and turns <= MAX_LOCAL_TURNS and", "if who and"),
    ("(queue_text == '' or entry\n", "(true or entry\n"),
    ("entry and tonumber(until_us or 0) > now", "entry"),
    ("if first and tonumber(first) > now", "if first"),
    ("and tonumber(expires) > now and", "and"),
    ("'PXAT', format('%d', math.ceil(at / 1000))", "'PXAT', format('%d', at / 1000)"),
    ("format('%d', ceil(latest / 1000))", "format('%d', latest / 1000)"),
    ("if step.new_readers then", "if false then"),
    (
        "math.max(doorman.last + 1, now))\n      record.put",
        "doorman.last)\n      record.put",
    ),
    ("mutex.drop_readers({ticket})\n    end", "end"),
    ("if not record.grant_of(new) then", "if true then"),
    ("call('PERSIST', KEYS[i])", ""),
    # Pushed grants.
    ("entry.ticket == '' or doorman.turns >= MAX_LOCAL_TURNS", "entry.ticket == ''"),
    (" and entry.ticket ~= pushed then", " then"),
    ("if doorman.pushed then -- no client wrote", "if false then --"),
    ("    admission.drop_claims(ticket)\n    return\n", "    return\n"),
    ("if ask.confirms and not items[1] then", "if false then"),
    ("math.min(entry.window, entry.lease)", "entry.window"),
    ("writer.since, writer.dirty = now_text, true", "writer.dirty = true"),
    (
        "if #items == #ask.claims and not doorman.pushed then",
        "if #items == #ask.claims then",
    ),
    ("if answer[1] == -3 then foreign = mutex.take_out(foreign, ARGV[5], '') end", ""),
    ("record.alter(entry, 'waiting', entry.waiting - 1)", ""),
    ("acquiring.put_claim(entry, ask.following, rawset)", ""),
    ("acquiring.put_claim(entry, ask.push and ask.claims[1], record.alter)", ""),
    ("if entry.ticket == ticket then record.alter(entry, 'claim_until', nil) end", ""),
    ("    if doorman.pushed then mutex.drop_writer() end\n", ""),
    ("%d,%d', writer.ticket", "%d,%d', writer.details"),
    ("    local answer\n    admission.confirm(ARGV[4])\n", "    local answer\n"),
    (
        "    admission.confirm(ticket)\n    mutex.drop(ticket)\n",
        "    mutex.drop(ticket)\n",
    ),
    ("lease)\n  admission.confirm(ticket)\n", "lease)\n"),
    ("'^(%x+),0,(.*)%]$'", "'^(%x+),%d+,(.*)%]$'"),
    # Their short cuts.
    ("'turns', format('%d', turns + 1), 'pushed'", "'turns', turns, 'pushed'"),
    ("try('ZRANGE', QUEUE, 0, 0)[1] or ''", "try('ZRANGE', QUEUE, -1, -1)[1] or ''"),
    ("stored[3] or '', 'admit_until', '')\n      call(", "'')\n      call("),
    ("      unreachable = client_id\n", ""),
    ("found[4] == (mine[6] == '' and 0 or 1)", "true"),
    ("return found[1] and found[5] > now and found or nil", "return found"),
    ("found[1] > 0 and text_of(found) or ''", "''"),
    # The shortest way: each step that must empty the field `plain`, and what it means.
    ("  differ(18, 'plain', '')\n", ""),
    ("format('%d', turns), 'plain', '',\n", "format('%d', turns),\n"),
    ("'number', number, 'plain', '')", "'number', number)"),
    ("'readers', '1', 'plain', '')", "'readers', '1')"),
    ("local plain = barred .. (stored[16]", "local plain = (stored[16]"),
    ("if last + 0 >= now then", "if false then"),
    ("if keep + 0 >= ms + ARGV[1] / 1000", "if true"),
    ("expires + 0 > now and try('GET', MUTEX) == mutex then", "expires + 0 > now then"),
    ("ticket == ARGV[5] and expires + 0 > now", "ticket == ARGV[5]"),
    ("'plain', now_text, 'admit_upto', '')", "'plain', now_text)"),
    ("'plain', now_text,\n          'admit_upto', number)", "'plain', now_text)"),
    # The queue, and the short cut of those that wait.
    ("number = doorman.number + 1, since", "number = doorman.number, since"),
    ("sums.waiting - entry.waiting", "sums.waiting"),
    ("math.min(sums.soonest, entry.expires)", "entry.expires"),
    (
        "if other.number < entry.number and other.stored == other.gone then",
        "if false then",
    ),
    ("return entry and not entry.gone and entry or nil", "return entry or nil"),
    ("format('(%d', -last), '-inf', 'BYSCORE', 'REV'", "'-inf', '(0', 'BYSCORE'"),
    ("entry.mode == 'r' and -entry.number", "false"),
    ("queue.known[entry.field].gone then", "entry.gone then"),
    ("and ticket ~= ARGV[5] and tonumber(expires) > now and sums()", "and sums()"),
    ("(limit == '' or found[2] < tonumber(limit))", "true"),
    ("math.max(mine[4], window)", "window"),
    ("if queue_text == '' then call('PEXPIREAT', QUEUE, stored[14]) end", ""),
    ("- (mine and mine[5] or 0) + waiting", "+ waiting"),
    ("flags == 3 and format(", "who and format("),
    ("math.max(tonumber(expires) or 0, now + ARGV[6])", "now + ARGV[6]"),
    ("{0, now, more == '0' and 0 or 1, last,", "{0, now, 0, last,"),
    ("elseif op == 'c' and pushed == stored[2]", "elseif op == 'c'"),
)


def test_the_unchanged_scripts_pass_the_controls(redis_server: RedisServer) -> None:
    """The meta-check: it is the planted faults that make the controls fail."""
    tell(redis_server, str)


@pytest.mark.parametrize(("right", "wrong"), mostly_long(FAULTS, 6))
def test_a_planted_fault_is_found(
    redis_server: RedisServer, right: str, wrong: str
) -> None:
    """A script with a fault does not get away with it."""
    with pytest.raises((AssertionError, BadRecord)):
        tell(redis_server, partial(edited, old=right, new=wrong))


def tell(server: RedisServer, change: Callable[[str], str]) -> None:
    """The same histories each time."""
    for seed in (72, 73):
        for kind in ({"busy": True}, {"calm": True}, {"quiet": True}, {}):
            comparison = Comparison(server.port, DB, change=change)
            try:
                comparison.run(CONTROL_COMMANDS, seed, **kind)
            finally:
                comparison.close()
