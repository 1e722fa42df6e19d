"""Transactions that are asked for at the same time, sent to the cluster as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.messages import TxnResponse
from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.errors import Unsupported

MOST_TOGETHER = 64
"""Transactions of one request. A member takes 128 operations (``--max-txn-ops``), of
which a transaction in another one may have those that are left.
"""
BYTES_TOGETHER = 250_000
"""Most bytes of a request. A member takes 1.5 MiB (``--max-request-bytes``)."""

Asked = tuple[bytes, asyncio.Future[TxnResponse | None]]
"""A transaction and its reply; None: it has to be sent alone."""


class GroupCommit:
    """Sends the transactions of one turn of the loop as nested transactions of one.

    The cluster carries out each as if it were alone, with conditions of its own; it
    agrees on all at once, at one revision. For renewals: the members agree once for 64
    of them. Belongs to the client's loop.

    Invariants, each with the test that fails without it (in
    ``tests/backends/etcd/test_group_commit.py``):

    * What refuses one transaction fails no other
      (test_a_refused_one_fails_no_other).
    * If it is not known whether they were carried out, each fails so
      (test_an_answer_that_is_lost_fails_all).
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._most = MOST_TOGETHER
        self._group: list[Asked] = []  # which the next transaction joins
        self._size = 0

    async def transact(self, request: bytes) -> TxnResponse:
        """Carry out a transaction; raise ``BackendError``."""
        if len(self._group) >= self._most or self._size + len(request) > BYTES_TOGETHER:
            self._group = []
        leads = not self._group
        self._size = len(request) + (0 if leads else self._size)
        group, reply = self._group, asyncio.get_running_loop().create_future()
        group.append((request, reply))
        if leads:
            await self._lead(group)
        found = await reply
        return found or await self._client.transact(request)

    async def _lead(self, group: list[Asked]) -> None:
        try:
            try:
                await asyncio.sleep(0)  # those of this turn join
            finally:
                if self._group is group:
                    self._group = []
            replies = await self._send([request for request, _ in group])
        except asyncio.CancelledError:
            for _, reply in group:
                reply.cancel()
            raise
        except Exception as exc:  # noqa: BLE001 - handed to those that asked
            for _, reply in group:
                if not reply.done():
                    reply.set_exception(exc)
        else:
            for (_, reply), found in zip(group, replies, strict=True):
                if not reply.done():
                    reply.set_result(found)

    async def _send(self, requests: list[bytes]) -> Sequence[TxnResponse | None]:
        """Return the answer to each transaction, None for those to be sent alone."""
        alone = [None] * len(requests)
        if len(requests) == 1:
            return alone
        then = [messages.transaction_operation(request) for request in requests]
        try:
            replies = await self._client.call(
                messages.TXN,
                messages.transaction([], then, []),
                partial(messages.parse_transactions, number=len(requests)),
            )
        except (CasContention, Unsupported):
            # The right to a key, the length, a lower ``--max-txn-ops``: who is refused
            # alone is told why. So that not each group is sent twice from now on:
            self._most = min(self._most, len(requests) // 2)
            return alone
        self._client.saw(replies[0].revision)
        return replies
