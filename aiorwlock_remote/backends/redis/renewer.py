"""The keeper's renewals as scripts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.codec import decode, encode
from aiorwlock_remote.backends.redis.connection.protocol import Request
from aiorwlock_remote.backends.redis.connection.renewal_channels import RenewalChannel
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
    """Renews the grants of a batch: one script each, all in one write."""

    def __init__(self, channel: RenewalChannel, settings: StoreSettings) -> None:
        """Prepare the renewer; ``channel`` connects at the first renewal."""
        self._channel = channel
        self._settings = settings
        self._cluster = isinstance(channel, ClusterRenewalChannel)

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        commands = [Renew(((item.ticket, item.lease),)) for item in batch]
        requests = [
            self._request(item.resource, command)
            for item, command in zip(batch, commands, strict=True)
        ]
        answers = self._channel.run_many(requests, timeout)
        return [
            _outcome(item.resource, command, raw)
            for item, command, raw in zip(batch, commands, answers, strict=True)
        ]

    def lane(self, resource: Resource) -> Hashable:
        """Return the node of a cluster that has the resource."""
        if not isinstance(self._channel, ClusterRenewalChannel):
            return None
        _, args = self._request(resource, Renew(()))
        return self._channel.lane(cast("bytes", args[1]))

    def give_up(self) -> None:
        self._channel.give_up()

    def close(self) -> None:
        self._channel.close()

    def _request(self, resource: Resource, command: Renew) -> Request:
        settings = self._settings
        # Without a client id: this thread cannot wake tasks of the loop, so our own
        # client gets a message as all others do.
        if isinstance(resource, SetMember):
            keys = SetKeys(settings, resource.type, "", cluster=self._cluster)
            return encode_member(keys, command)
        return encode(
            keys_of(
                settings.prefix, resource, settings.fence_memory, cluster=self._cluster
            ),
            command,
        )


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
