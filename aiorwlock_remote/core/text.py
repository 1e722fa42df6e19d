"""What users give and are shown again: reasons, names of tasks, values in errors.

Names of files, as users give them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches

from aiorwlock_remote.errors import ConfigurationError

MAX_REASON = 1000
"""Characters of a reason."""
MAX_SHOWN = 80
"""Characters of a value in an error."""


def check_reason(reason: str) -> str:
    """What is written beside a lock for others to read.

    Raises:
        ConfigurationError: no text, too long, or one that no store can hold.
    """
    if not isinstance(reason, str):
        raise ConfigurationError(
            what=f"a reason must be str, not {type(reason).__name__}"
        )
    if len(reason) > MAX_REASON:
        raise ConfigurationError(
            what=f"a reason of {len(reason)} characters", hint=f"at most {MAX_REASON}"
        )
    check_text("a reason", reason)
    return reason


def check_text(what: str, text: str) -> None:
    """Whether every store can hold it.

    Raises:
        ConfigurationError: a NUL, or half a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(what=f"{what} is not valid Unicode text") from None
    if "\0" in text:
        raise ConfigurationError(what=f"{what} has a NUL character in it")


def quoted(value: object) -> str:
    """A value that was refused, for the error: short, on one line, whatever it is."""
    if isinstance(value, str):
        value = value[: MAX_SHOWN + 1]
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - integers of 4,300 digits, and objects of users
        text = f"<{type(value).__name__}>"
    if len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}…"
    return "".join(char if char.isprintable() else "?" for char in text)


def nearest(name: str, known: Iterable[str], *others: str) -> str:
    """The hint for a name that is not known: the one it is most like, or all of them.

    ``others`` may be meant as well, and are not listed.
    """
    every = sorted(known)
    like = get_close_matches(name, (*every, *others), n=1, cutoff=0.75)
    if like:
        return f"did you mean {like[0]!r}?"
    return f"known: {', '.join(every) or 'none'}"


def one_line(text: str, most: int) -> str:
    """Of whatever it is, so many bytes: nobody is refused for a name."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line.encode()[:most].decode(errors="ignore")


def check_path(path: str | os.PathLike[str]) -> str:
    """It, as a text; nothing is looked at.

    Raises:
        ConfigurationError: no text, an empty one, or one that no file can have.
    """
    name: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise ConfigurationError(what=f"a path is a str, not {type(name).__name__}")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        pass
    else:
        if name and "\0" not in name:
            return name
    raise ConfigurationError(what=f"{name!r} is not the name of a file or folder")
