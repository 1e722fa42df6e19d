"""The first commands on a connection, and what their replies say about the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import hiredis

from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    Script,
    SubscribeCall,
    as_is,
)
from aiorwlock_remote.backends.redis.errors import from_reply, not_redis
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)

MIN_SERVER = (7, 0)
_NEEDS = f"Redis {'.'.join(map(str, MIN_SERVER))} or later, or Valkey, is needed"
MIN_REDACTED_LENGTH = 6
"""Passwords of at least so many characters are removed from all error texts; shorter
ones, which may be parts of ordinary words, only where they are quoted."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Value object: identifies one of our connections at its server.

    ``number``: its client id. ``run``: the server's run id, which a restart changes; ""
    if the user may not ask for it.
    """

    number: int
    run: str = ""


class Handshake:
    """The first commands on a connection; ``judge`` checks their replies."""

    def __init__(
        self,
        options: Options,
        scripts: Sequence[Script],
        channels: Iterable[bytes] = (),
    ) -> None:
        """Prepare the commands that log in, load scripts and subscribe to channels."""
        self._options = options
        self._hello = _HandshakeCall("HELLO", *_hello(options))
        self._select = _HandshakeCall("SELECT", options.db) if options.db else None
        # HELLO names no run, without which no connection may be killed, and it is
        # unknown to servers whose version the error is to name.
        self._info = _HandshakeCall("INFO", "server")
        self._rest: list[Call[Any]] = [
            *(_HandshakeCall("SCRIPT", "LOAD", script.text) for script in scripts),
            *(SubscribeCall("SUBSCRIBE", channel) for channel in channels),
        ]

    @property
    def calls(self) -> list[Call[Any]]:
        # SELECT before everything that depends on the database
        # (test_a_database_is_selected_before_anything_is_subscribed).
        first = [self._hello] if self._select is None else [self._hello, self._select]
        return [*first, self._info, *self._rest]

    def judge(self) -> Peer:
        """Check the replies of ``calls`` (all done); return client id and run id.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The server has no such database.
        """
        raw = self._hello.result()
        if isinstance(raw, hiredis.ReplyError) and "unknown command" in str(raw):
            self._fail_without_hello(self._info.result())
        hello = self._fields(raw)
        self._check_server(hello)
        if self._select is not None:
            self._check_database(self._select.result())
        for call in self._rest:
            self._checked(call.result())
        run = _info_field(self._info.result(), "run_id")
        return Peer(number=int(hello.get("id", 0)), run=run)

    def _fail_without_hello(self, info: object) -> NoReturn:
        where, known = self._options.where, _info_field(info, "redis_version")
        if known and _numbers(known) < MIN_SERVER:
            raise _too_old(where, known)
        version = f"version {known}" if known else "a server of unknown version"
        raise Unsupported(
            what=f"{where}: {version} does not know the command HELLO",
            hint="was it renamed or disabled (rename-command, an ACL, a proxy)? It is "
            f"needed, and known since Redis 6.0; {_NEEDS}",
        )

    def _fields(self, raw: object) -> dict[str, str]:
        raw = self._checked(raw)
        if not isinstance(raw, dict):
            raise not_redis(self._options.where)
        found: dict[Any, Any] = raw  # pyright: ignore[reportUnknownVariableType]
        return {_text(name): _text(value) for name, value in found.items()}

    def _check_server(self, hello: dict[str, str]) -> None:
        where = self._options.where
        version = hello.get("version", "")
        if version and _numbers(version) < MIN_SERVER:
            raise _too_old(where, version)
        if hello.get("mode") == "sentinel":
            raise Unsupported(what=f"{where}: it is a Sentinel, not a store")
        # A replica of a cluster redirects us to its primary, and may become one itself.
        replica = hello.get("role") in {"replica", "slave"}
        if replica and not self._options.seeds:
            found = self._options.sentinels is not None
            raise BackendUnavailable(
                what=f"{where}: it is a replica",
                hint="asked again" if found else "name the primary in the URL",
            )

    def _check_database(self, raw: object) -> None:
        if isinstance(raw, hiredis.ReplyError) and "out of range" in str(raw):
            raise ConfigurationError(
                what=f"{self._options.where}: it has no database {self._options.db}"
            )
        self._checked(raw)

    def _checked(self, raw: object) -> object:
        if not isinstance(raw, hiredis.ReplyError):
            return raw
        text, password = str(raw), self._options.password
        if password:
            # A proxy may quote in its error what it was sent, the password included
            # (test_the_password_is_in_no_error).
            for quote in "'\"`":
                text = text.replace(f"{quote}{password}{quote}", "…")
            if len(password) >= MIN_REDACTED_LENGTH:
                text = text.replace(password, "…")
        error = from_reply(text, self._options.where)
        if isinstance(error, BackendError):
            raise error
        raise BackendError(what=str(error))


class _HandshakeCall(Call[Any]):
    """A call whose error reply is its result, for ``Handshake.judge`` to check."""

    __slots__ = ()

    def __init__(self, *args: str | int) -> None:
        super().__init__(as_is, args)

    def refused(self, text: str, where: str) -> None:  # noqa: ARG002 - `judge` knows it
        self.set_result(hiredis.ReplyError(text))


# The second write of a handshake, after a lost connection to the same run of the
# server: a command that is still on its way there must not be carried out after newer
# ones (test_the_lost_connection_is_ended_at_the_server). A user without the right to
# ask for the run (INFO) or to kill does without (test_a_user_who_may_do_little).
def client_kill(peer: Peer) -> Call[Any]:
    """Return the call (CLIENT KILL) that ends our lost connection at the server."""
    return _HandshakeCall("CLIENT", "KILL", "ID", peer.number)


def _hello(options: Options) -> list[str | int]:
    words: list[str | int] = [3]
    if options.username or options.password:
        words += ["AUTH", options.username or "default", options.password or ""]
    return [*words, "SETNAME", options.client_name]


def _too_old(where: str, version: str) -> Unsupported:
    return Unsupported(what=f"{where}: the server's version is {version}", hint=_NEEDS)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def _info_field(info: object, wanted: str) -> str:
    for line in _text(info).splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return value
    return ""


def _text(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
