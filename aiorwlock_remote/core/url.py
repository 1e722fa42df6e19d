"""Store URLs: ``scheme://…?option=value`` → where the store is and how to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from aiorwlock_remote.core.text import (
    check_str,
    check_text,
    has_control_character,
    nearest,
    quoted,
)
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import ConfigurationError

# Options of ``connect`` that no lock has.
CONNECT_ONLY_OPTIONS = frozenset(
    {"connect_timeout", "fence_memory", "min_replicas", "observers", "prefix", "wake"}
)
# Options passed to ``connect`` beside the URL.
CONNECT_OPTIONS = CONNECT_ONLY_OPTIONS | {
    *("lease", "lock_delay", "margin", "max_hold", "max_stall", "max_waiters"),
    *("fair", "on_lost", "policy", "slow_wait"),
}
_ESCAPES = "in a password, / is %2F, ? is %3F, # is %23, % is %25 and @ is %40"
# Digits of a whole number in a URL.
_MAX_DIGITS = 18


@value
class Address:
    """A parsed store URL. Its ``repr`` and ``str`` never show a password.

    ``query`` holds the options as text. The methods that read an option raise
    ``ConfigurationError`` if its text does not fit.
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
        """Raise ``ConfigurationError`` if the URL has an option not in ``known``."""
        for name in self.query:
            # A misspelt option must not leave a lock with the default unnoticed.
            if name not in known:
                ours = f"say connect(url, {name}=…)" if name in CONNECT_OPTIONS else ""
                raise ConfigurationError(
                    what=f"{self.scheme}: unknown option {quoted(name)} in the URL",
                    hint=ours or nearest(name, known),
                )

    def without_prefix(self, given: str) -> tuple[Address, str]:
        """Return the address without its option ``prefix``, and the prefix to use.

        ``given``: the prefix passed to ``connect``. ``ConfigurationError`` if both
        differ.
        """
        in_url = self.query.get("prefix")
        if in_url is None:
            return self, given
        if given not in {"", in_url}:
            raise ConfigurationError(
                what=f"prefix is {quoted(given)} for connect and "
                f"{quoted(in_url)} in the URL"
            )
        return self._without("prefix"), in_url

    def without_wake(self, given: str) -> tuple[Address, str]:
        """Return the address without its option ``wake``, and the wake URL to use.

        ``given``: the one passed to ``connect``. ``ConfigurationError`` if both differ.
        """
        in_url = self.query.get("wake", given)
        if given not in {"", in_url}:  # not shown: they may have passwords
            raise ConfigurationError(
                what="wake is given for connect, and another one in the URL"
            )
        return self._without("wake"), in_url

    def _without(self, option: str) -> Address:
        rest = {name: text for name, text in self.query.items() if name != option}
        return replace(self, query=rest)

    def number(self, name: str, default: float) -> float:
        """Return the number in the option ``name``, or ``default`` if it is missing."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(
                what=f"{self.scheme}: option {name}={quoted(text)} is not a number"
            ) from None

    def seconds(
        self, name: str, default: float, *, least: float = 0.0, most: float = 86_400.0
    ) -> float:
        """Return option ``name`` in seconds, ``least`` to ``most``, or ``default``."""
        number = self.number(name, default)
        return in_range(f"{self.scheme}: {name}", number, least, most)

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return option ``name``: a whole number in this range, or ``default``."""
        text = self.query.get(name, str(default))
        number = whole_number(text)
        if number is not None and least <= number <= most:
            return number
        raise ConfigurationError(
            what=f"{self.scheme}: {name}={quoted(text)} is not a whole number in range",
            hint=f"from {least} to {most}",
        )

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """Return the option ``name``, one of the words ``known``, or ``default``."""
        text = self.query.get(name, default)
        if text not in known:
            raise ConfigurationError(
                what=f"{self.scheme}: {name}={quoted(text)}",
                hint=f"known: {', '.join(known)}",
            )
        return text

    def yes(self, name: str, *, default: bool) -> bool:
        """Return True if the option is "yes", False if "no", ``default`` if missing."""
        return self.choice(name, "yes" if default else "no", ("yes", "no")) == "yes"


def whole_number(text: str) -> int | None:
    """Return the number in a text of up to 18 ASCII digits; None for any other text."""
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if plain else None


def in_range(what: str, seconds: float, least: float, most: float) -> float:
    """Return ``seconds`` if in this range; else raise an error about ``what``."""
    if not least <= seconds <= most:  # NaN neither
        raise ConfigurationError(
            what=f"{what}={seconds:g} is out of range",
            hint=f"seconds, from {least:g} to {most:g}",
        )
    return seconds


def parse(url: str) -> Address:
    """Return the parts of a store URL, or raise ``ConfigurationError``."""
    check_str("a store URL", url)
    _check_printable("the store URL", url)
    try:
        parts = _split(url)
        port = _port(parts)
        path, username, password = (
            _unquoted(part) for part in (parts.path, parts.username, parts.password)
        )
        query = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
    except ValueError as exc:
        problem = _reason(exc)
    else:
        if not parts.scheme or not url[len(parts.scheme) :].startswith("://"):
            raise ConfigurationError(
                what="a store URL is scheme://…", hint="for example sqlite:///locks.db"
            )
        _check_user(parts, query)
        _check_printable("the path of the store URL", path or "")
        _check_printable("the user name of the store URL", username or "")
        return Address(
            scheme=parts.scheme,
            host=_host(parts),
            port=port,
            path=path or "",
            username=username,
            password=password,
            query=_options(query),
        )
    # Raised behind the `except` clause: the ValueError quotes the URL, so it must not
    # be the context of this error either (test_bad_urls).
    raise ConfigurationError(what=f"bad store URL: {problem}", hint=_ESCAPES)


def with_prefix(url: str, prefix: str) -> str:
    """Add ``?prefix=`` to a URL; ``ConfigurationError`` if it has another prefix."""
    if "prefix" in parse(url).query:
        parse(url).without_prefix(prefix)
        return url
    rest, mark, fragment = url.partition("#")
    sign = "&" if "?" in rest else "?"
    return f"{rest}{sign}prefix={quote(prefix, safe='')}{mark}{fragment}"


def _options(query: list[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, given in query:
        if name in options:
            raise ConfigurationError(
                what=f"option {quoted(name)} is given twice in the URL"
            )
        what = f"option {quoted(name)} of the store URL"
        if name == "prefix":  # any text may be one, and it is shown quoted
            check_text(what, given)
        else:
            _check_printable(what, name + given)
        options[name] = given
    return options


def _check_user(parts: SplitResult, query: list[tuple[str, str]]) -> None:
    # If a password has a "/", "?" or "#" in it, what follows is parsed as a path or as
    # the name of an option, and errors would show a part of the password.
    behind = (parts.path, parts.fragment, *(name for name, _ in query))
    if parts.netloc and any("@" in text for text in behind):
        raise ConfigurationError(
            what="bad store URL: there is an @ behind the host",
            hint=f"{_ESCAPES}, also in a path",
        )


def _check_printable(what: str, text: str) -> None:
    # A URL is shown in errors and logs, where it must not steer a terminal.
    check_text(what, text)
    if has_control_character(text):
        raise ConfigurationError(what=f"{what} has a control character in it")


def _split(url: str) -> SplitResult:
    scheme, mark, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user, at, hosts = authority.rpartition("@")
    if "," not in hosts:
        return urlsplit(url)
    without = scheme + mark + user + at + rest[len(authority) :]
    return urlsplit(without)._replace(netloc=authority)


class _BadPort(ValueError):
    """The port of a URL is not a number from 0 to 65535."""


def _port(parts: SplitResult) -> int | None:
    # Several hosts ("h1,h2:9042") stay in ``host``, with their ports.
    if "," in _hosts(parts):
        return None
    try:
        return parts.port
    except ValueError as exc:
        raise _BadPort from exc


def _host(parts: SplitResult) -> str:
    hosts = _hosts(parts)
    return hosts if "," in hosts else (parts.hostname or "")


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text, errors="strict")


def _reason(exc: ValueError) -> str:
    # The error names the kind of fault (test_what_is_wrong_with_a_url) and never quotes
    # the offending part: it may be a password, or half of one (test_bad_urls).
    if isinstance(exc, UnicodeError):
        return "its %xx escapes are not UTF-8"
    if isinstance(exc, _BadPort):
        return "the port is not a number from 0 to 65535"
    return "malformed"
