"""The lease of etcd with which the doormen of free resources end."""

from __future__ import annotations

import asyncio
import math

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client

LEAST_SECONDS = 120.0
"""A swap that was lost may come for so long, and must not find its resource absent."""
ROTATIONS = 4
"""A lease is used for this part of the time for which doormen are kept."""
MAX_KEYS = 1000
"""Doormen of one lease: the cluster deletes all of them in one step."""


class IdleLease:
    """Gives leases for doormen without a holder and without a waiter.

    A lease is not renewed, so the cluster deletes its doormen after ``memory`` seconds
    at least, also when the client is gone. A doorman in use has no lease: the time of
    its grants is judged by clients, and the cluster ends none of them.
    """

    def __init__(self, client: Client, memory: float) -> None:
        self._client = client
        self._memory = max(memory, LEAST_SECONDS)
        self._turn = asyncio.Lock()
        self._id = 0
        self._until = -math.inf
        self._keys = 0

    async def id(self) -> int:
        """Return the id of a lease for one more doorman; raise ``BackendError``."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            if now >= self._until or self._keys >= MAX_KEYS:
                use = self._memory / ROTATIONS
                request = messages.lease_grant(math.ceil(self._memory + use))
                self._id = await self._client.call(
                    messages.LEASE_GRANT, request, messages.parse_lease_id
                )
                self._until, self._keys = now + use, 0
            self._keys += 1
            return self._id

    def forget(self) -> None:
        """Ask for a new lease next: the present one does not exist any more."""
        self._until = -math.inf
