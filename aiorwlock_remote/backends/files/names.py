"""Resources as names of files: injective, and safe wherever files are kept.

Each byte of the UTF-8 text but ``a-z 0-9 _ - = + @ .`` is written as ``%xx``, a leading
dot too; type and id are joined by a comma. So names differ on file systems that fold
case or rewrite Unicode, have no separators, and are never ``..`` or hidden. One of more
than 180 bytes is cut and ends in ``~`` and its SHA-256.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import unquote

from aiorwlock_remote.core.names import Resource, encode
from aiorwlock_remote.errors import ConfigurationError

SEAT, RECORD = ".lock", ".doorman"
HIDDEN = "."
"""What the names of our other files begin with."""
MAX_NAME_BYTES = 180
_KEPT_WHEN_CUT = 100
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-=+@.,")
# The core's own escapes, and its mark of a name that was cut, stay what they are.
_KEPT = re.compile(r"%[0-9A-F]{2}|%~")


def stem(resource: Resource) -> str:
    """What the names of a resource's files begin with."""
    key = resource.key
    name = escape(key)
    if len(name) <= MAX_NAME_BYTES:
        return name
    return f"{name[:_KEPT_WHEN_CUT]}~{sha256(key.encode()).hexdigest()}"


def resource_of_name(name: str) -> Resource | None:
    """The resource whose stem that is, as far as a name tells that was not cut.

    None: nothing that we would call a resource's file.
    """
    kind, comma, rest = name.partition(",")
    if not comma:
        return None
    try:
        found = Resource(_part(kind), _part(rest))
    except (ConfigurationError, UnicodeDecodeError):
        return None
    return found if stem(found) == name else None


def escape(text: str) -> str:
    """A part of a name."""
    pieces: list[str] = []
    at = 0
    for kept in _KEPT.finditer(text):
        pieces += [_plain(text[at : kept.start()]), _own(kept[0])]
        at = kept.end()
    name = "".join([*pieces, _plain(text[at:])])
    return f"%2e{name[1:]}" if name.startswith(".") else name


def _plain(text: str) -> str:
    return "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode()
    )


def _own(escape: str) -> str:
    return "~" if escape == "%~" else escape.lower()


def _part(name: str) -> str:
    text, mark, digest = name.partition("~")
    whole = encode(unquote(text, errors="strict"))
    return f"{whole}%~{digest}" if mark else whole
