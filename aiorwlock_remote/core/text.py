"""Checks of texts that users give, and their short forms in errors and logs.

Each check raises ``ConfigurationError`` if it refuses a text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches

from aiorwlock_remote.errors import ConfigurationError

# Characters in the longest reason.
MAX_REASON = 1000
# Characters of a refused value that an error shows.
MAX_SHOWN = 80


def check_str(what: str, value: object) -> str:
    """Return a str unchanged; else raise ``ConfigurationError`` that names ``what``."""
    if not isinstance(value, str):
        raise ConfigurationError(what=f"{what} must be str, not {type(value).__name__}")
    return value


def check_unicode(what: str, text: str) -> None:
    """Raise ``ConfigurationError`` about ``what`` if the text has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return
    # Raised behind the `except` clause: the UnicodeEncodeError contains the text, which
    # may be a URL with a password, so it must not be the context of this error.
    raise ConfigurationError(what=f"{what} is not valid Unicode text")


def has_control_character(text: str) -> bool:
    """Return True if any character is an ASCII or Latin-1 control character."""
    return any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in text)


def check_reason(reason: str) -> str:
    """Return a text if it can be a lock's reason, else raise ``ConfigurationError``."""
    check_str("a reason", reason)
    if len(reason) > MAX_REASON:
        raise ConfigurationError(
            what=f"a reason of {len(reason)} characters", hint=f"at most {MAX_REASON}"
        )
    check_text("a reason", reason)
    return reason


def check_text(what: str, text: str) -> None:
    """Raise ``ConfigurationError`` about ``what`` if it has NUL or invalid Unicode."""
    check_unicode(what, text)
    # PostgreSQL stores no NUL in a text, whatever the client's driver allows.
    if "\0" in text:
        raise ConfigurationError(what=f"{what} has a NUL character in it")


def quoted(value: object) -> str:
    """Return the repr of a refused value for an error text: short, on one line."""
    if isinstance(value, str):
        value = value[: MAX_SHOWN + 1]
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - integers of 4,300 digits, and users' objects
        text = f"<{type(value).__name__}>"
    if len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}…"
    return "".join(char if char.isprintable() else "?" for char in text)


def nearest(name: str, known: Iterable[str], *others: str) -> str:
    """Return a hint for an unknown name: the most similar, or a list of the known.

    ``others`` may be suggested as well, but are not listed.
    """
    every = sorted(known)
    like = get_close_matches(name, (*every, *others), n=1, cutoff=0.75)
    if like:
        return f"did you mean {like[0]!r}?"
    return f"known: {', '.join(every) or 'none'}"


def one_line(text: str, most: int) -> str:
    """Return at most ``most`` bytes of the text; unprintable characters become "?"."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line.encode()[:most].decode(errors="ignore")


def plain(text: str) -> str:
    """Return the text with every unprintable character escaped.

    Names are written by other programs, and must not steer the user's terminal, nor
    turn the direction of a page's text.
    """
    return "".join(
        c
        if c.isprintable()
        else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def check_path(path: str | os.PathLike[str]) -> str:
    """Return the path as text; ``ConfigurationError`` if no file can have that name."""
    name: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    text = check_str("a path", name)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        pass
    else:
        if text and "\0" not in text:
            return text
    raise ConfigurationError(what=f"{text!r} cannot be the name of a file or folder")
