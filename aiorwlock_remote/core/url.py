"""URLs: ``scheme://…?option=value`` → where the store is and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from aiorwlock_remote.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed store URL. Its ``repr`` and ``str`` never show a password.

    ``query`` holds the options as text; backends take the typed ones they know and
    refuse the rest.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.scheme}://{user}{self.host}{port}{self.path}"

    def only(self, *known: str) -> None:
        """Refuse options other than these.

        Raises:
            ConfigurationError: naming the first unknown option and the known ones.
        """
        for name in self.query:
            if name not in known:
                raise ConfigurationError(
                    what=f"{self.scheme}: unknown option {name!r} in the URL",
                    hint=f"known: {', '.join(sorted(known)) or 'none'}",
                )

    def number(self, name: str, default: float) -> float:
        """An option that is a number."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(
                what=f"{self.scheme}: option {name}={text!r} is not a number"
            ) from None

    def seconds(
        self, name: str, default: float, *, least: float = 0.0, most: float = 86_400.0
    ) -> float:
        """An option that is a time, from ``least`` to ``most``."""
        number = self.number(name, default)
        return in_range(f"{self.scheme}: {name}", number, least, most)

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """An option that is a whole number, from ``least`` to ``most``."""
        text = self.query.get(name, str(default))
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        raise ConfigurationError(
            what=f"{self.scheme}: {name}={text!r}", hint=f"from {least} to {most}"
        )

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """An option that is one of these words."""
        text = self.query.get(name, default)
        if text not in known:
            raise ConfigurationError(
                what=f"{self.scheme}: {name}={text!r}",
                hint=f"known: {', '.join(known)}",
            )
        return text

    def yes(self, name: str, *, default: bool) -> bool:
        """An option that is yes or no."""
        return self.choice(name, "yes" if default else "no", ("yes", "no")) == "yes"


def in_range(what: str, seconds: float, least: float, most: float) -> float:
    """A time that is from ``least`` to ``most``.

    Raises:
        ConfigurationError: it is not.
    """
    if not least <= seconds <= most:  # NaN neither
        raise ConfigurationError(
            what=f"{what}={seconds:g} is out of range",
            hint=f"seconds, from {least:g} to {most:g}",
        )
    return seconds


def parse(url: str) -> Address:
    """Take a store URL apart.

    Raises:
        ConfigurationError: no scheme, a bad port, or an option given twice.
    """
    if not isinstance(url, str):
        raise ConfigurationError(
            what=f"a store URL must be str, not {type(url).__name__}"
        )
    try:
        parts = urlsplit(url)
        port = _port(parts)
    except ValueError as exc:
        raise ConfigurationError(what=f"bad store URL: {_reason(exc)}") from None
    if not parts.scheme or not url[len(parts.scheme) :].startswith("://"):
        raise ConfigurationError(
            what="a store URL is scheme://…", hint="for example sqlite:///locks.db"
        )
    return Address(
        scheme=parts.scheme,
        host=_host(parts),
        port=port,
        path=unquote(parts.path),
        username=_unquoted(parts.username),
        password=_unquoted(parts.password),
        query=_options(parts.query),
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise ConfigurationError(what=f"option {name!r} is given twice in the URL")
        options[name] = value
    return options


def _port(parts: SplitResult) -> int | None:
    # Several hosts ("h1,h2:9042") stay in ``host``; only the last one's port is parsed.
    return None if "," in _hosts(parts) else parts.port


def _host(parts: SplitResult) -> str:
    hosts = _hosts(parts)
    return hosts if "," in hosts else (parts.hostname or "")


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def _reason(exc: ValueError) -> str:
    # urlsplit quotes the offending part, which may be a password cut in two.
    return (
        "the port is not a number from 0 to 65535"
        if "port" in str(exc).lower()
        else "malformed"
    )
