"""One resource at a real server, asked one command at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hiredis

from aiorwlock_remote.backends.redis.codec import decode_step, encode
from aiorwlock_remote.backends.redis.connection.protocol import Arg
from aiorwlock_remote.backends.redis.keys import Keys
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Granted,
    Release,
    Reply,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import Snapshot
from tests.backends.redis.differential import Wire
from tests.servers.redis import RedisServer

SECOND = 1_000_000
LEASE = 30 * SECOND
CLIENT_ID = "ourgate"


class ResourceClient:
    """Commands of ``CLIENT_ID``. ``calls``: what each script's calls were."""

    def __init__(self, server: RedisServer, name: int | str = 123) -> None:
        self.keys: Keys = Keys(resource("foobar", name), fence_memory=3600)
        self.seat, self.state, self.readers, self.queue = (
            str(key, "utf-8") for key in self.keys.args[1:5] if isinstance(key, bytes)
        )
        self._wire = Wire(server.port)
        self.rung: bool = False
        self.pushed: PushedGrant | None = None
        for script in ALL:
            self.ask("SCRIPT", "LOAD", script.text)

    def ask(self, *args: Arg) -> Any:  # noqa: ANN401 - any answer
        """Any command; an error is raised."""
        (answer,) = self._wire.ask([args])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def do(self, command: Command, client_id: str = CLIENT_ID) -> Reply:
        """A step."""
        script, args = encode(self.keys, command, client_id)
        raw = self.ask("EVALSHA", script.sha, *args)
        reply, self.rung, self.pushed = decode_step(command, raw)
        return reply

    def write(self, ticket: str, lease: int | None = LEASE, **options: Any) -> Reply:  # noqa: ANN401
        """A writer asks."""
        return self.do(_acquire(Mode.WRITE, ticket, lease=lease, **options))

    def read(self, *tickets: str, lease: int | None = LEASE, **options: Any) -> Reply:  # noqa: ANN401
        """Readers ask."""
        return self.do(_acquire(Mode.READ, *tickets, lease=lease, **options))

    def release(self, ticket: str, *then: Acquire) -> Reply:
        """Somebody leaves."""
        return self.do(Release(ticket, None, then))

    def look(self) -> Snapshot:
        """What is there."""
        keys = self.keys
        raw = self.ask("EVALSHA", keys.look.sha, *keys.args)
        return decode_look(keys.resource, raw)

    def fields(self) -> dict[str, str]:
        """The state, without the empty fields."""
        flat = [text.decode() for text in self.ask("HGETALL", self.state)]
        return {k: v for k, v in zip(flat[::2], flat[1::2], strict=True) if v}

    def dump(self) -> list[bytes | None]:
        """All keys, to see that nothing was changed."""
        keys = (self.seat, self.state, self.readers, self.queue)
        return [self.ask("DUMP", key) for key in keys]

    def calls(self, command: Command) -> int:
        """How many calls a step makes inside the server."""
        self.ask("CONFIG", "RESETSTAT")
        self.do(command)
        stats = self.ask("INFO", "commandstats").decode()
        names = [line.split(":")[0] for line in stats.split("\r\n") if "calls=" in line]
        counts = [
            int(line.split("calls=")[1].split(",")[0])
            for line in stats.split("\r\n")
            if "calls=" in line
        ]
        outside = ("cmdstat_evalsha", "cmdstat_config|resetstat", "cmdstat_info")
        return sum(
            count
            for name, count in zip(names, counts, strict=True)
            if name not in outside
        )

    def close(self) -> None:
        """Hang up."""
        self._wire.close()


def acquire(mode: Mode, *tickets: str, lease: int | None = LEASE) -> Acquire:
    """An acquire of our process."""
    return _acquire(mode, *tickets, lease=lease)


def _acquire(
    mode: Mode,
    *tickets: str,
    lease: int | None = LEASE,
    client_id: str = CLIENT_ID,
    more: int = 0,
    lock_delay: int = 0,
    push: bool = False,
    confirms: bool = False,
    following: Claim | None = None,
) -> Acquire:
    claims = tuple(Claim(t, lease, lock_delay=lock_delay) for t in tickets)
    return Acquire(
        claims,
        mode,
        client_id=client_id,
        may_queue=True,
        more=more,
        push=push,
        confirms=confirms,
        following=following,
    )


def granted(reply: object) -> Granted:
    """The reply, which lets all in."""
    assert isinstance(reply, Granted), reply
    return reply


DAMAGES = ("", "x", "nan", "-inf", "-5", "1e3", "9" * 30, "half", "nul")
"""What a field is replaced by; ``half`` of its text, or its text with a ``nul``."""


class DamagedResource:
    """A resource in use, of which one thing is damaged at a time.

    ``commands``: the steps that may meet the damage; a subclass makes them.
    """

    commands: list[Command]

    def __init__(self, client: ResourceClient) -> None:
        self.client = client
        self.keys = client.seat, client.state, client.readers, client.queue
        self.whole = client.dump()

    def fields(self) -> Iterator[tuple[str, str, str]]:
        """Key, field and its text: all that is there."""
        key = self.client.state
        flat = [text.decode() for text in self.client.ask("HGETALL", key)]
        for field, text in zip(flat[::2], flat[1::2], strict=True):
            yield key, field, text

    def reset(self) -> None:
        for key, dump in zip(self.keys, self.whole, strict=True):
            self.client.ask("DEL", key)
            if dump is not None:
                self.client.ask("RESTORE", key, 0, dump)

    def refusal(self, command: Command) -> str | None:
        """What a step on it is refused with, after which nothing has changed."""
        before = self.client.dump()
        script, args = encode(self.client.keys, command, CLIENT_ID)
        try:
            answer = self.client.ask("EVALSHA", script.sha, *args)
        except hiredis.ReplyError as exc:
            message = str(exc)
            assert message.startswith("BADRECORD "), (message, command)
            assert self.client.dump() == before, (message, command)
            return message
        decode_step(command, answer)
        return None

    def damages(self) -> Iterator[tuple[str, str, str]]:
        """Yield each field with each value that damages it: key, field, value."""
        for key, field, text in list(self.fields()):
            ways = {"half": text[: len(text) // 2], "nul": f"{text}\0"}
            for damage in DAMAGES:
                bad = ways.get(damage, damage)
                fits = text.isdigit() or field == "seat"  # half of it does, too
                if bad != text and not (damage == "half" and fits):
                    yield key, field, bad

    def is_refused_with_keys_of_another_type(self) -> None:
        for key in self.keys:
            for command in self.commands:
                self.reset()
                self.client.ask("DEL", key)
                self.client.ask("RPUSH", key, "x")
                assert f"BADRECORD {key} is not a" in (self.refusal(command) or "")
