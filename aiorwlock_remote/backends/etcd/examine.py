"""What ``rwlock doctor`` finds out about a cluster."""

from __future__ import annotations

from collections.abc import Callable

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.grpc_channel import http_date, shown
from aiorwlock_remote.backends.etcd.options import Options
from aiorwlock_remote.errors import BackendError, Unsupported
from aiorwlock_remote.ports import Clock, Finding

_ALARMS = {1: "NOSPACE", 2: "CORRUPT"}
_NO_SPACE = "nothing can be written: compact, defragment, `etcdctl alarm disarm`"
_NO_ALARM = "writes are accepted"
_Make = Callable[[int], Client]


async def examine(client: Client, make: _Make, clock: Clock) -> list[Finding]:
    """Ask each endpoint of the URL, and the cluster.

    ``make``: returns a client of one endpoint alone, by its number. ``clock``: that of
    this process.
    """
    found: list[Finding] = []
    endpoints = client.options.endpoints
    for number, endpoint in enumerate(endpoints):
        found.append(await _member(make(number), shown(endpoint)))
    reached = sum(finding.rating != "bad" for finding in found)
    found += [_quorum(reached, len(endpoints)), await _alarms(client)]
    found.append(await _clock(client.options, clock))
    if user := client.options.username:
        why = "only keys that its roles allow can be used"
        return [*found, Finding("login", user, why)]
    why = "any client may take or break a lock"
    return [*found, Finding("login", "none", why, rating="note")]


async def _member(client: Client, name: str) -> Finding:
    try:
        status = await client.call(messages.STATUS, b"", messages.parse_status)
    except Unsupported as exc:
        # It has answered, or there would be no such error.
        why = "answers; only the user root may ask for its state"
        return Finding(f"member {name}", exc.what, why, rating="note")
    except BackendError as exc:
        why = "a client that is connected to it goes to another one"
        return Finding(f"member {name}", exc.what, why, rating="bad")
    finally:
        client.close()
    role = "leader" if status.leader == status.member_id else "follower"
    size = f"{status.db_size / 2**20:.1f} MiB"
    value = f"etcd {status.version}, {role}, {size}"
    if status.errors:
        return Finding(f"member {name}", value, "; ".join(status.errors), rating="bad")
    return Finding(f"member {name}", value, "answers, and knows a leader")


def _quorum(reached: int, named: int) -> Finding:
    value = f"{reached} of {named} named members answer"
    if named == 1:
        why = "name several members: this client goes nowhere else if it is away"
        return Finding("endpoints", value, why, rating="note")
    if reached <= named // 2:
        return Finding("endpoints", value, "no majority of them", rating="bad")
    return Finding("endpoints", value, "a majority: each grant is known to one")


async def _clock(options: Options, clock: Clock) -> Finding:
    # It ends no lease; but a process elsewhere whose clock is right, as the member's
    # may be, differs from this one by as much.
    why = f"those of processes may differ by clock_skew={options.clock_skew:g} s"
    tls = None if options.tls is None else options.tls.context(options.where)
    told = await http_date(options.endpoints, tls)
    if told is None:
        return Finding("clock", "not told", why, rating="note")
    ahead = told[1] - clock.wall()
    value = f"that of {told[0]} is {ahead:+.0f} s from ours"
    fits = abs(ahead) <= max(1.0, options.clock_skew / 2)
    return Finding("clock", value, why, rating="good" if fits else "note")


async def _alarms(client: Client) -> Finding:
    try:
        alarms = await client.call(messages.ALARM, b"", messages.parse_alarms)
    except BackendError as exc:
        return Finding("alarms", "not known", exc.what, rating="note")
    names = sorted({_ALARMS.get(kind, f"alarm {kind}") for _, kind in alarms})
    if names:
        return Finding("alarms", ", ".join(names), _NO_SPACE, rating="bad")
    return Finding("alarms", "none", _NO_ALARM)
