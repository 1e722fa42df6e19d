"""Steering the double from other processes: a line of JSON, and one in answer."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.oracle.faults import Counted, Rule
from tests.servers.oracle.server import Server

_SECONDS = 20.0
Facts = dict[str, Any]


class ControlServer:
    """Answers in the process of the double, on a socket in the file system."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def start(self, path: Path) -> None:
        await asyncio.start_unix_server(self._serve, path)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                asked: Facts = json.loads(line)
                command: Callable[..., Any] = getattr(self, f"do_{asked.pop('do')}")
                try:
                    answer = {"result": await command(**asked)}
                except Exception as error:  # noqa: BLE001 - for whoever asked
                    answer = {"error": repr(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _rule(self, user: str, number: int) -> Rule:
        return next(r for r in self._server.faults(user).rules if r.number == number)

    async def do_ready(self) -> int:
        return self._server.port

    async def do_listen(self, certificate: str, key: str, clients: str | None) -> int:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
        context.load_cert_chain(certificate, key)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
        return await self._server.listen(context)

    async def do_unlisten(self, port: int) -> None:
        self._server.unlisten(port)

    async def do_create_user(self, user: str, password: str) -> None:
        await self._server.create_user(user, password)

    async def do_drop_user(self, user: str) -> None:
        await self._server.drop_user(user)

    async def do_account(self, user: str, code: int) -> None:
        self._server.account(user, code)

    async def do_set(self, user: str, **settings: Any) -> None:  # noqa: ANN401
        for name, value in settings.items():
            setattr(self._server.faults(user), name, value)

    async def do_clear(self, user: str) -> None:
        self._server.faults(user).clear()

    async def do_rule(self, user: str, **settings: Any) -> int:  # noqa: ANN401
        rule = Rule(do=settings.pop("do_"), **settings)
        self._server.faults(user).rules.append(rule)
        return rule.number

    async def do_reached(self, user: str, number: int) -> None:
        async with asyncio.timeout(_SECONDS):
            await self._rule(user, number).reached.wait()

    async def do_let_go(self, user: str, number: int) -> None:
        self._rule(user, number).let_go.set()

    async def do_calls(self, user: str) -> list[Counted]:
        return self._server.faults(user).calls

    async def do_forget_calls(self, user: str) -> None:
        self._server.faults(user).calls.clear()

    async def do_sessions(self, user: str) -> list[int]:
        return [session.number for session in self._server.of(user)]

    async def do_waiting(self, user: str) -> list[int]:
        return await self._server.waiting(user)

    async def do_end_sessions(self, user: str, how: str, session: int | None) -> int:
        return await self._server.end_sessions(user, how, session)


class Control:
    """Asks, from any thread and any process; each question blocks for its answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, do: str, **asked: Any) -> Any:  # noqa: ANN401 - JSON
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_SECONDS + 5)
            sock.connect(str(self._path))
            sock.sendall(json.dumps({"do": do, **asked}).encode() + b"\n")
            with sock.makefile() as file:
                answer: Facts = json.loads(file.readline())
        if "error" in answer:
            raise RuntimeError(f"the double of Oracle: {answer['error']}")
        return answer["result"]
