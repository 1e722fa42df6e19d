"""One client's session: a call, an answer, and breaks in between."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from tests.servers.oracle.channel import Channel, Hangup
from tests.servers.oracle.database import Database
from tests.servers.oracle.errors import (
    CANCELLED,
    KILLED,
    LAST_WORDS,
    OracleError,
    unsupported,
)
from tests.servers.oracle.execute import Executor
from tests.servers.oracle.faults import Faults, Rule
from tests.servers.oracle.framing import Framing
from tests.servers.oracle.functions import Function
from tests.servers.oracle.handshake import connect, log_in, welcome
from tests.servers.oracle.replies import Replies
from tests.servers.oracle.requests import Call, Requests

if TYPE_CHECKING:
    from tests.servers.oracle.server import Server

_ABORTS = 2  # how a pipeline goes on after an error: not at all


class Session:
    """Of one connection, from its first packet to its end."""

    _numbers = itertools.count(100)

    def __init__(self, server: Server, framing: Framing) -> None:
        self.number: int = next(self._numbers)
        self.user: str = ""
        self.database: Database | None = None
        self.killed: OracleError | None = None
        self._server = server
        self._framing = framing
        self._channel = Channel(framing, lambda: self._faults, self._cancel)
        self._pipeline = 0
        self._aborted = False

    @property
    def _faults(self) -> Faults:
        return self._server.faults(self.user)

    async def _cancel(self) -> None:
        if self.database is not None:
            await self._server.cancel(self.database.pid)

    def abort(self) -> None:
        """Closes the connection without a word."""
        self._channel.abort()

    async def run(self) -> None:
        """Until the client goes, or is made to."""
        listening: asyncio.Task[None] | None = None
        try:
            profile = await connect(self._framing)
            listening = asyncio.create_task(self._channel.listen())
            replies = Replies(profile.fields)
            self._channel.cancelled = lambda: replies.end(CANCELLED)
            user, proof = await log_in(self._channel, profile, self._server, replies)
            self.user = user
            self.database = await self._server.open(self, profile)
            await self._channel.send(welcome(self.number, profile, proof, replies))
            executor = Executor(
                self.database, profile, replies, self._server.make_block
            )
            requests = Requests(profile.fields, executor.cursors)
            while True:
                await self._one_call(requests, executor, replies)
        except (Hangup, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if listening is not None:
                listening.cancel()
            if self.database is not None:
                self.database.close()
            self._framing.close()

    async def _one_call(
        self, requests: Requests, executor: Executor, replies: Replies
    ) -> None:
        try:
            call = await self._channel.read(requests.read)
        except OracleError as error:
            token = replies.token(requests.token)
            await self._channel.send(token + replies.end(error))
            return
        self._channel.busy = True
        self._faults.count(self.number, call)
        executor.close(call.closed)
        if call.pipeline is not None:
            self._pipeline, self._aborted = call.pipeline, False
        if call.one_way:
            self._channel.busy = False
            return
        if self._faults.latency:
            await asyncio.sleep(self._faults.latency)
        failed: OracleError | None = None
        try:
            body = await self._answer(call, executor, replies)
        except OracleError as error:
            failed = self.killed or error
            self._aborted = self._pipeline == _ABORTS
            body = replies.end(failed, cursor=call.cursor)
        body = replies.token(call.token) + body
        if call.function == Function.PIPELINE_END:
            self._pipeline, self._aborted = 0, False
        if failed and failed.number in LAST_WORDS:
            await self._channel.send(body)
            raise Hangup
        self._channel.busy = False
        await self._finish(body, failed=failed is not None)
        if call.function == Function.LOGOFF:
            raise Hangup

    async def _finish(self, body: bytes, *, failed: bool) -> None:
        if self._channel.broken:
            await self._channel.answer_break()
            return
        late = failed and self._faults.late_errors
        if late and not self._framing.ends_responses:
            await self._channel.exchange_marks()
        await self._channel.send(body)

    async def _answer(self, call: Call, executor: Executor, replies: Replies) -> bytes:
        if self.killed:
            raise self.killed
        if self._aborted and call.function != Function.PIPELINE_END:
            raise CANCELLED
        if rule := self._faults.rule("before", self.number, call):
            await self._suffer(rule)
        body = await self._dispatch(call, executor, replies)
        if rule := self._faults.rule("after", self.number, call):
            await self._suffer(rule)
        return body

    async def _suffer(self, rule: Rule) -> None:
        if rule.do == "drop":
            self._framing.abort()
            raise Hangup
        if rule.do == "error":
            raise OracleError(rule.code, "made to fail")
        if rule.do == "kill":
            self.killed = KILLED
            raise KILLED
        if rule.do == "silence":
            self._channel.silent = True
        elif rule.do == "delay":
            await asyncio.sleep(rule.seconds)
        else:
            await rule.let_go.wait()

    async def _dispatch(
        self, call: Call, executor: Executor, replies: Replies
    ) -> bytes:
        assert self.database is not None
        match call.function:
            case Function.EXECUTE | Function.REEXECUTE | Function.REEXECUTE_FETCH:
                return await executor.execute(call)
            case Function.FETCH:
                return executor.fetch(call)
            case Function.COMMIT:
                await self.database.commit()
            case Function.ROLLBACK | Function.LOGOFF:
                await self.database.rollback()
            case Function.PING | Function.PIPELINE_END:
                pass
            case _:
                raise unsupported(f"network function {call.function}")
        replies.in_transaction = self.database.in_transaction
        return replies.status()
