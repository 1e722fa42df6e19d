"""Names of files, as users give them."""

from __future__ import annotations

import os

from aiorwlock_remote.errors import ConfigurationError


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
