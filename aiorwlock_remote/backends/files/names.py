"""Maps resources to names of files: reversible, and safe on every file system.

Each byte of the UTF-8 text except ``a-z 0-9 _ - = + @ .`` is written as ``%xx``, also a
leading dot; type and id are joined by a comma. So names differ on file systems that
fold case or rewrite Unicode, have no separators, and are never ``..`` or hidden. A name
of more than 180 bytes is cut and ends in ``~`` and its SHA-256.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import unquote

from aiorwlock_remote.core.names import SEMAPHORE, Resource, encode
from aiorwlock_remote.errors import ConfigurationError

SEAT, RECORD = ".lock", ".doorman"
"""How the names of a resource's two files end."""
HIDDEN = "."
"""How the names of the library's other files begin."""
MAX_NAME_BYTES = 180
_KEPT_WHEN_CUT = 100
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-=+@.,")
# The escapes of ``core.names`` are kept, in lower case, and so are its marks: of a name
# that was cut (``%~``), and of a semaphore.
_KEPT = re.compile(rf"%[0-9A-F]{{2}}|%~|{SEMAPHORE}(?=,)")


def stem(resource: Resource) -> str:
    """Return the beginning of a resource's file names, before .doorman and .lock."""
    key = resource.key
    name = escape(key)
    if len(name) <= MAX_NAME_BYTES:
        return name
    return f"{name[:_KEPT_WHEN_CUT]}~{sha256(key.encode()).hexdigest()}"


def resource_of_name(name: str) -> Resource | None:
    """Return the resource whose ``stem`` is ``name``; None if that cannot be known."""
    kind, comma, rest = name.partition(",")
    if not comma:
        return None
    try:
        plain = kind.removesuffix(SEMAPHORE)
        marked = _part(plain) + kind[len(plain) :]
        found = Resource(marked, _part(rest))
    except (ConfigurationError, UnicodeDecodeError):
        return None
    return found if stem(found) == name else None


def escape(text: str) -> str:
    """Return ``text`` with the bytes that are unsafe in file names as ``%xx``."""
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


def _own(escaped: str) -> str:
    return "~" if escaped == "%~" else escaped.lower()


def _part(name: str) -> str:
    text, mark, digest = name.partition("~")
    whole = encode(unquote(text, errors="strict"))
    return f"{whole}%~{digest}" if mark else whole
