"""What tests do with the double: have users of their own, and make things go wrong."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.certificates import Certificates
from tests.servers.oracle.control import Control
from tests.servers.oracle.faults import Counted, Deed, Hole, When
from tests.servers.oracle.profiles import PROFILES

IP = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Stop:
    """A rule in the double, by its number."""

    user: OracleUser
    number: int

    def reached(self) -> None:
        """Returns when a call has met it; TimeoutError's kin after 20 s."""
        self.user.ask("reached", number=self.number)

    def let_go(self) -> None:
        """Whoever was stopped by it goes on."""
        self.user.ask("let_go", number=self.number)


@dataclass(frozen=True, slots=True)
class OracleUser:
    """With a schema of its own; its faults and counts are nobody else's.

    ``profile``: the service it asks for, and with it how old the server is.
    """

    double: OracleDouble
    name: str
    password: str
    profile: str = "23ai"

    def at(self, profile: str) -> OracleUser:
        """The same user of the same tables, at an older or newer server."""
        return OracleUser(self.double, self.name, self.password, profile)

    @property
    def service(self) -> str:
        return PROFILES[self.profile].service

    @property
    def dsn(self) -> str:
        return f"{IP}:{self.double.port}/{self.service}"

    @property
    def url(self) -> str:
        return f"oracle://{self.name}:{self.password}@{self.dsn}"

    @property
    def login(self) -> dict[str, str]:
        """For ``oracledb.connect`` and its kin."""
        return {"user": self.name, "password": self.password, "dsn": self.dsn}

    def ask(self, do: str, **asked: Any) -> Any:  # noqa: ANN401 - JSON
        return self.double.control.ask(do, user=self.name.upper(), **asked)

    def latency(self, seconds: float) -> None:
        """Added to each round trip."""
        self.ask("set", latency=seconds)

    def late_errors(self) -> None:
        """Errors are announced by a mark first (not at 23ai)."""
        self.ask("set", late_errors=True)

    def hole(self, hole: Hole) -> None:
        """Nothing goes "in" to the server, "out" of it, or "both"; "" ends it."""
        self.ask("set", hole=hole)

    def rule(
        self,
        when: When,
        do: Deed,
        text: str = "",
        *,
        times: int = 1,
        session: int | None = None,
        code: int = 0,
        seconds: float = 0.0,
    ) -> Stop:
        """What happens to the next calls whose statement contains the text."""
        settings: dict[str, Any] = {"times": times, "session": session}
        settings |= {"code": code, "seconds": seconds}
        number = self.ask("rule", when=when, do_=do, text=text, **settings)
        return Stop(self, number)

    def well(self) -> None:
        """No faults any more, and nothing counted."""
        self.ask("clear")

    def calls(self) -> list[Counted]:
        """Its round trips so far, logins left out."""
        return [Counted(*call) for call in self.ask("calls")]

    def forget_calls(self) -> None:
        self.ask("forget_calls")

    def sessions(self) -> list[int]:
        found: list[int] = self.ask("sessions")
        return found

    def waiting(self) -> list[int]:
        """Its sessions that wait for a lock."""
        found: list[int] = self.ask("waiting")
        return found

    def kill(self, session: int | None = None) -> int:
        """As an administrator does: ORA-00028. How many sessions."""
        return self._end("kill", session)

    def end(self, session: int | None = None) -> int:
        """As if the server's process had died: ORA-03113. How many sessions."""
        return self._end("end", session)

    def drop(self, session: int | None = None) -> int:
        """The connections are closed without a word. How many."""
        return self._end("drop", session)

    def _end(self, how: str, session: int | None) -> int:
        ended: int = self.ask("end_sessions", how=how, session=session)
        return ended

    def account(self, code: int) -> None:
        """28000: locked, 28001: expired, 0: well."""
        self.ask("account", code=code)


class OracleDouble:
    """The one of this pytest run."""

    def __init__(self, control: Path) -> None:
        self.control = Control(control)
        self.port: int = 0

    def ready(self) -> bool:
        try:
            self.port = self.control.ask("ready")
        except (OSError, ValueError):
            return False
        return True

    @contextmanager
    def tls(self, files: Certificates, *, mutual: bool = False) -> Iterator[int]:
        """A port where it speaks TLS as ``localhost``, until the end of the ``with``.

        ``mutual``: to those alone who have a certificate of the same authority.
        """
        names = {"certificate": str(files.certificate), "key": str(files.key)}
        clients = str(files.authority) if mutual else None
        port: int = self.control.ask("listen", **names, clients=clients)
        try:
            yield port
        finally:
            self.control.ask("unlisten", port=port)

    @contextmanager
    def user(self, name: str) -> Iterator[OracleUser]:
        """A new one with an empty schema, dropped afterwards."""
        user = OracleUser(self, name, secrets.token_urlsafe(12))
        user.ask("create_user", password=user.password)
        try:
            yield user
        finally:
            user.ask("drop_user")
