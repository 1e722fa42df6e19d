"""The double as a server: its users, its sessions, and PostgreSQL behind it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from pathlib import Path

from tests.servers.oracle import pg
from tests.servers.oracle.database import Database
from tests.servers.oracle.errors import (
    END_OF_FILE,
    KILLED,
    OracleError,
    from_postgresql,
)
from tests.servers.oracle.faults import Faults
from tests.servers.oracle.framing import Framing
from tests.servers.oracle.plsql import Block
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.session import Session

log = logging.getLogger("oracle_double")

_SCHEMA = Path(__file__).with_name("schema.sql")
_ACCOUNT = {
    28000: "the account is locked",
    28001: "the password has expired",
}
_HOW = {"kill": KILLED, "end": END_OF_FILE}


class Server:
    """All profiles on one port: the service a client asks for says which."""

    def __init__(self, dsn: str) -> None:
        self.port: int = 0
        self.sessions: dict[int, Session] = {}
        self._dsn = dsn
        self._passwords: dict[str, str] = {}
        self._refused: dict[str, int] = {}
        self._faults: dict[str, Faults] = {}
        self._blocks: set[str] = set()
        self._making = asyncio.Lock()
        self._admin: pg.Executes | None = None
        self._server: asyncio.Server | None = None
        self._secure: dict[int, asyncio.Server] = {}

    async def start(self, port: int = 0) -> None:
        self._admin = await pg.pool(self._dsn, {"check_function_bodies": "off"})
        await self._admin.execute(_SCHEMA.read_text())
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def listen(self, tls: ssl.SSLContext) -> int:
        """On another port, to clients that speak TLS there; the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port: int = server.sockets[0].getsockname()[1]
        self._secure[port] = server
        return port

    def unlisten(self, port: int) -> None:
        self._secure.pop(port).close()

    async def close(self) -> None:
        assert self._server is not None
        assert self._admin is not None
        self._server.close()
        for session in list(self.sessions.values()):
            session.abort()
        self._admin.terminate()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(self, Framing(reader, writer))
        self.sessions[session.number] = session
        try:
            await session.run()
        except Exception:
            log.exception("session %s of %s", session.number, session.user)
        finally:
            del self.sessions[session.number]

    # ------------------------------------------------------- what sessions ask

    def password(self, user: str) -> str:
        """Its password; one that nobody knows for a user that is none."""
        return self._passwords.get(user, secrets.token_hex())

    def refuses(self, user: str) -> OracleError | None:
        code = self._refused.get(user, 0)
        return OracleError(code, _ACCOUNT[code]) if code else None

    def faults(self, user: str) -> Faults:
        return self._faults.setdefault(user, Faults())

    async def open(self, session: Session, profile: Profile) -> Database:
        name = f"oracle-double-{session.number}"
        return await Database.open(self._dsn, session.user, profile, name)

    async def cancel(self, pid: int) -> None:
        await self._execute("SELECT pg_cancel_backend($1)", pid)

    async def make_block(self, block: Block) -> None:
        async with self._making:
            if block.name in self._blocks:
                return
            try:
                await self._execute(block.definition)
            except pg.PostgresError as error:
                mapped = from_postgresql(error, "")
                raise OracleError(6550, f"PL/SQL: {mapped.message}") from error
            self._blocks.add(block.name)

    async def _execute(self, text: str, *values: str | int) -> None:
        assert self._admin is not None
        await self._admin.execute(text, *values)

    # ------------------------------------------------------- what tests ask

    async def create_user(self, name: str, password: str) -> None:
        """With a schema of its own, in which it may do everything."""
        role = name.lower()
        await self._execute(
            f'CREATE ROLE "{role}" LOGIN;'
            f'CREATE SCHEMA "{role}" AUTHORIZATION "{role}";'
            f'GRANT USAGE ON SCHEMA "{role}" TO PUBLIC'
        )
        self._passwords[name.upper()] = password

    async def drop_user(self, name: str) -> None:
        """And all that it has, its sessions included."""
        user, role = name.upper(), name.lower()
        self._passwords.pop(user, None)
        self.faults(user).clear()
        del self._faults[user]
        await self._execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE usename = $1",
            role,
        )
        for session in self.of(user):
            session.abort()
        await self._execute(f'DROP OWNED BY "{role}" CASCADE')
        await self._execute(f'DROP ROLE "{role}"')

    def account(self, name: str, code: int) -> None:
        """28000 locks it, 28001 lets its password expire, 0 makes it well again."""
        self._refused[name.upper()] = code

    def of(self, user: str) -> list[Session]:
        """The sessions of a user that has logged in."""
        return [s for s in self.sessions.values() if s.user == user.upper()]

    async def end_sessions(self, user: str, how: str, session: int | None) -> int:
        """How many.

        ``kill``: informed at their next call or in the running one; ``end``: likewise,
        as if the server's process had died; ``drop``: closed without a word.
        """
        ended = [s for s in self.of(user) if session in {None, s.number}]
        for one in ended:
            if how == "drop" or one.database is None:  # or it is logging in
                one.abort()
            else:
                one.killed = _HOW[how]
                pid = one.database.pid
                await self._execute("SELECT pg_terminate_backend($1)", pid)
        return len(ended)

    async def waiting(self, user: str) -> list[int]:
        """Sessions that wait for a lock another has."""
        assert self._admin is not None
        rows = await self._admin.fetch(
            "SELECT pid FROM pg_stat_activity WHERE usename = $1 "
            "AND wait_event_type = 'Lock'",
            user.lower(),
        )
        pids = {row["pid"] for row in rows}
        return [
            s.number for s in self.of(user) if s.database and s.database.pid in pids
        ]
