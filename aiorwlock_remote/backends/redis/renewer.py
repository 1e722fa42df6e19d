"""The keeper's renewals as scripts, over whatever batches go over."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.commands import decode, encode
from aiorwlock_remote.backends.redis.connection.calls import Request
from aiorwlock_remote.backends.redis.connections import RenewalChannel
from aiorwlock_remote.backends.redis.keys import keys_of
from aiorwlock_remote.backends.redis.mutex_sets import (
    SetKeys,
    decode_member,
    encode_member,
)
from aiorwlock_remote.core.commands import NotHeld, Renew, Renewed
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Renewal, StoreSettings


class RedisRenewer:
    """Renewals of the keeper's thread: one script each, all in one write."""

    def __init__(self, batches: RenewalChannel, settings: StoreSettings) -> None:
        """Connects at the first renewal."""
        self._batches = batches
        self._settings = settings
        self._cluster = isinstance(batches, ClusterRenewalChannel)

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all in one write and one read."""
        commands = [Renew(((item.ticket, item.lease),)) for item in batch]
        requests = [
            self._request(item.resource, command)
            for item, command in zip(batch, commands, strict=True)
        ]
        answers = self._batches.run_many(requests, timeout)
        return [
            _outcome(item.resource, command, raw)
            for item, command, raw in zip(batch, commands, answers, strict=True)
        ]

    def lane(self, resource: Resource) -> Hashable:
        """The node of a cluster that has it."""
        if not isinstance(self._batches, ClusterRenewalChannel):
            return None
        _, args = self._request(resource, Renew(()))
        return self._batches.lane(cast("bytes", args[1]))

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self._batches.give_up()

    def close(self) -> None:
        """Close the connection."""
        self._batches.close()

    def _request(self, resource: Resource, command: Renew) -> Request:
        told = self._settings
        # Without our gate: nobody here rings the bell, so we get a message, too.
        if isinstance(resource, SetMember):
            set_keys = SetKeys(told, resource.type, gate="", cluster=self._cluster)
            return encode_member(set_keys, command)
        keys = keys_of(told.prefix, resource, told.fence_memory, cluster=self._cluster)
        return encode(keys, command)


def _outcome(
    resource: Resource, command: Renew, raw: object
) -> Grant | NotHeld | Exception:
    if isinstance(raw, Exception):
        return raw
    try:
        member = isinstance(resource, SetMember)
        reply = (decode_member if member else decode)(command, raw)
    except BackendError as exc:
        return exc
    assert isinstance(reply, Renewed)
    return reply.outcomes[0]
