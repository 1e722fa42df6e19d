"""Notices that a replica of the primary was promoted, before the Sentinels say so.

``ReplicaWatch`` looks at what the primary says of its replicas behind each batch of
renewals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.backends.redis.connection.connector import (
    REPLICATION,
    info_fields,
    replicas_in,
)
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.log import log_redis
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.ports import Clock

OPEN_TIMEOUT = 0.5
"""Seconds to connect to a replica that left the primary, but at most a third of the
time that the batch has left."""
SENTINELS_DECIDE = 3.0
"""Seconds in which the Sentinels name the replica that they have promoted: they look at
it once a second. One that is a primary for longer was detached by a person."""
PAUSE_PER_OPEN = 2
"""A replica that is out of reach is tried again after so many times what that took."""
PAUSE_PER_ABSENCE = 1 / 4
"""The pause grows by so much of the time for which the replica has been missing."""


@dataclass(slots=True)
class _Missing:
    """A replica that the primary does not list any more.

    ``since``, ``ask_at``, ``primary_since``: local monotonic times.
    """

    channel: ThreadLoopChannel
    since: float
    ask_at: float
    primary_since: float = math.inf


# In a planned failover a replica is a primary for up to 1.1 s before any Sentinel says
# so: they look at its role once a second. What the old primary acknowledges meanwhile,
# the new one does not know, and its records of the grants may end. But a promoted
# replica ends its link to the old primary in the same moment, so that one INFO behind
# each batch of renewals shows it (tests/faults/failovers.py).
class ReplicaWatch:
    """Finds the replica that was promoted, for the lease keeper's thread.

    Invariants (test_promotion.py):

    * Only servers that the present primary has listed as replicas, and that have its
      data, are believed to be promoted. A former primary, which is writable until it is
      demoted, is none of them, nor is a replica that was restarted empty.
    * A replica that is away, or was detached by a person, delays renewals by a bounded
      part of their time, and prevents none.
    """

    def __init__(
        self,
        finder: PrimaryFinder,
        clock: Clock,
        channel_to: Callable[[Server], ThreadLoopChannel],
    ) -> None:
        """``channel_to(server)``: a channel that refuses to open to a replica."""
        self._finder = finder
        self._clock = clock
        self._channel_to = channel_to
        self._missing: dict[Server, _Missing] = {}
        self._history = ""  # the replication id of the primary

    def note(self, info: object) -> None:
        """Take in what the primary replied to ``REPLICATION`` behind a batch."""
        fields = info_fields(info)
        if fields.get("role") != "master":  # demoted, or the user may not ask
            return
        self._history = fields.get("master_replid", "")
        finder, now = self._finder, self._clock.now()
        present = replicas_in(info)
        finder.saw_replicas(present, finder.switches)
        missing = finder.replicas.difference(present)
        for server in self._missing.keys() - missing:
            self._missing.pop(server).channel.close()
        for server in missing - self._missing.keys():
            self._missing[server] = _Missing(self._channel_to(server), now, now)

    def successor(self, timeout: float) -> ThreadLoopChannel | None:
        """Return an open channel to a replica that is a primary now, None if none is.

        Takes ``timeout`` seconds at most.
        """
        deadline = self._clock.now() + timeout
        for server, replica in self._missing.items():
            now = self._clock.now()
            if now < replica.ask_at or deadline <= now:
                continue
            if not self._is_promoted(replica, min(OPEN_TIMEOUT, (deadline - now) / 3)):
                after = self._clock.now()
                pause = PAUSE_PER_OPEN * (after - now)
                pause += PAUSE_PER_ABSENCE * (after - replica.since)
                replica.ask_at = after + pause
                continue
            if replica.primary_since == math.inf:
                replica.primary_since = now
                name = self._finder.sentinels.name
                log_redis("replica_promoted", primary=name, server=shown(server))
            if now < replica.primary_since + SENTINELS_DECIDE:
                self._finder.doubt()
                return replica.channel
            replica.ask_at = math.inf
            replica.channel.close()
        return None

    def _is_promoted(self, replica: _Missing, timeout: float) -> bool:
        deadline = self._clock.now() + timeout
        try:
            replica.channel.open(timeout)
            left = deadline - self._clock.now()
            (info,) = replica.channel.run_many([(None, REPLICATION)], left)
        except (BackendError, ConfigurationError):  # a replica, or out of reach
            return False
        return info_fields(info).get("master_replid2") == self._history

    def give_up(self) -> None:
        """Make what is under way fail soon. For use by any thread."""
        for replica in list(self._missing.values()):
            replica.channel.give_up()

    def close(self) -> None:
        """Forget all replicas: another server is the primary, or there is none now."""
        while self._missing:
            self._missing.popitem()[1].channel.close()
