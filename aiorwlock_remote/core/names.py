"""Names: any (type, id) a user may think of → one name each store accepts.

The encoding is injective, and a plain name comes out exactly as the published layouts
have it: ``("foobar", 123)`` → ``foobar,123``. Characters with a meaning in some store
(``% { } , /`` and control characters) are percent-encoded; a name of more than 200
bytes is cut and ends in ``%~`` and its SHA-256, which no ordinary name contains.

A readers-writer lock on a pair of published keys: a set and a string (S3).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Self
from urllib.parse import unquote
from uuid import UUID

from aiorwlock_remote.core.text import check_text, quoted
from aiorwlock_remote.errors import ConfigurationError

ResourceId = int | str | UUID
"""Counted by its text: 42 and "42" are one resource."""

MAX_NAME_BYTES = 200
_KEPT_WHEN_CUT = 100
CACHE_SIZE = 1024
"""Encoded names: S0's calls give theirs each time."""
_ESCAPED = frozenset("%{},/")
_SHOWN_CUT = re.compile("…[0-9a-f]{8}$")
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
"""A percent sign before anything else is a foreign program's."""
_IDS = int, str, UUID
_INT32 = range(-(2**31), 2**31)


class Resource(NamedTuple):
    """One lockable thing. 42 and "42" name the same one.

    ``type`` and ``id`` are encoded; ``label`` is for people and is not compared. A
    tuple, because every request looks it up in several tables.
    """

    type: str
    id: str
    kind: str = ""
    """What is no ordinary resource is another lock, whatever its names."""

    @property
    def key(self) -> str:
        """``type,id``, as it stands in the published mutex record's name."""
        return f"{self.type},{self.id}"

    @property
    def shown(self) -> tuple[str, str]:
        """Type and id as the user wrote them."""
        return decode(self.type), decode(self.id)

    @property
    def label(self) -> str:
        """``type/id``, for errors, logs and tables.

        A slash in the type is ``%2F``: else two resources would be shown as one, and a
        person could not name the one of them.
        """
        kind, name = self.shown
        return f"{kind.replace('%', '%25').replace('/', '%2F')}/{name}"

    @property
    def row(self) -> tuple[str, int]:
        """The published SQL key: small integers in the integer column, others encoded.

        The comma cannot occur in an encoded type, so the two forms never meet.
        """
        return _row(self.type, self.id)


class _Prefixed(Resource):
    """A resource as a ``Locks`` with a prefix shows it: without the prefix.

    The prefix takes no part in comparisons: the resource is equal to the same one of a
    ``Locks`` without a prefix, and to what a store reads from its keys.
    """

    prefix: str  # in the instance's dictionary: a tuple has no slots

    @property
    def shown(self) -> tuple[str, str]:
        """Type and id as the user wrote them."""
        kind, name = super().shown
        return kind.removeprefix(self.prefix), name


def resource(resource_type: str, resource_id: ResourceId, prefix: str = "") -> Resource:
    """Return the resource of that name in a ``Locks`` with that prefix.

    Raises:
        ConfigurationError: an empty part, a wrong type, text that is not Unicode.
    """
    try:
        return _named(resource_type, resource_id, prefix)
    except TypeError:  # it cannot be looked up: it is none, or a strange kind of one
        return _named.__wrapped__(resource_type, resource_id, prefix)


@lru_cache(CACHE_SIZE, typed=True)  # 1 is a name, and equal to True, which is none
def _named(resource_type: str, resource_id: ResourceId, prefix: str) -> Resource:
    kind = encode_type(resource_type, prefix)
    return _shown(Resource(kind, encode(id_text(resource_id))), prefix)


def encode_type(resource_type: str, prefix: str = "") -> str:
    """Return the first part of a name: the prefix and the type are one text.

    Raises:
        ConfigurationError: empty, a wrong type, text that is not Unicode.
    """
    if not isinstance(resource_type, str):
        raise ConfigurationError(
            what=f"resource type must be str, not {type(resource_type).__name__}"
        )
    return encode(prefix + resource_type if resource_type else "")


def resource_under_prefix(found: Resource, prefix: str) -> Resource | None:
    """Return the resource as a ``Locks`` with that prefix shows it.

    None: the resource has no name there. A resource of another kind, as a pair of keys,
    has the same names everywhere: its store puts the prefix before them.
    """
    if found.kind:
        return found
    if not prefix:
        return Resource(*found)  # it may be shown otherwise to somebody else
    start = encode(prefix)  # never cut: see ``check_prefix``
    ours = found.type.startswith(start) and found.type != start
    return _shown(found, prefix) if ours else None


def _shown(found: Resource, prefix: str) -> Resource:
    if not prefix:
        return found
    shown = _Prefixed(*found)
    shown.prefix = prefix
    return shown


def resource_from_row(row_type: str, row_id: int) -> Resource:
    """The resource a published SQL row stands for: the inverse of ``Resource.row``."""
    kind, comma, name = row_type.partition(",")
    return Resource(kind, name) if comma else Resource(row_type, str(row_id))


def resource_from_key(key: str) -> Resource:
    """The resource of a ``type,id`` key: the inverse of ``Resource.key``."""
    kind, _, name = key.partition(",")
    return Resource(kind, name)


def split_label(label: str) -> tuple[str, str]:
    """The type and id of a ``type/id``: split at the first slash; empty if missing."""
    kind, _, name = label.partition("/")
    return type_from_label(kind), name


def type_from_label(shown: str) -> str:
    """The type that stands in a label; slashes and percent signs may be plain, too."""
    return unquote(shown)


@lru_cache(CACHE_SIZE)
def encode(text: str) -> str:
    """One part of a name, percent-encoded, at most 200 bytes long."""
    if not text:
        raise ConfigurationError(what="an empty name cannot be locked")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            what=f"{quoted(text)} is not valid Unicode text"
        ) from None
    safe = "".join(_escape(c) for c in text)
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    return _cut(text) + "%~" + sha256(raw).hexdigest()


def decode(name: str) -> str:
    """The name as the user wrote it; one that was cut stays as it is stored.

    What is no text, as a file's name may be, is shown with signs for that.
    """
    head, mark, digest = name.partition("%~")
    raw = head.encode(errors="surrogateescape")
    text = _ENCODED.sub(_byte, raw).decode(errors="replace")
    return text + ("…" + digest[:8] if mark else "")


def _byte(encoded: re.Match[bytes]) -> bytes:
    return bytes.fromhex(encoded[1].decode())


def is_cut(shown: str) -> bool:
    """Whether it is what ``decode`` gives of a name that was cut."""
    return _SHOWN_CUT.search(shown) is not None


def check_prefix(prefix: object) -> str:
    """Return the prefix: with it begins the text of each type of one ``Locks``.

    Raises:
        ConfigurationError: ``{`` or ``}`` (they would move a Redis Cluster slot), a
            comma, ``%`` or a control character; what is no Unicode text; or so long
            that a type that is cut would not begin with all of it.
    """
    if not isinstance(prefix, str):
        raise ConfigurationError(
            what=f"prefix must be str, not {type(prefix).__name__}"
        )
    if any(c in "{},%" or ord(c) < 0x20 or ord(c) == 0x7F for c in prefix):
        raise ConfigurationError(
            what=f"prefix {quoted(prefix)} cannot be used",
            hint="no braces, commas, percent signs or control characters",
        )
    check_text("prefix", prefix)
    if prefix and len(encode(prefix).encode()) > _KEPT_WHEN_CUT:
        raise ConfigurationError(
            what=f"prefix {quoted(prefix)} is too long",
            hint=f"at most {_KEPT_WHEN_CUT} bytes, a slash counting as three",
        )
    return prefix


def id_text(resource_id: ResourceId) -> str:
    """An id as text: 42 and "42" are the same.

    Raises:
        ConfigurationError: a wrong type, or an integer of thousands of digits.
    """
    if isinstance(resource_id, bool) or not isinstance(resource_id, _IDS):
        raise ConfigurationError(
            what="resource id must be int, str or UUID, "
            f"not {type(resource_id).__name__}"
        )
    if not isinstance(resource_id, int):
        return str(resource_id)
    try:
        return str(int(resource_id))
    except ValueError:  # Python's own limit, 4300 digits by default
        raise ConfigurationError(what="resource id has too many digits") from None


def _escape(char: str) -> str:
    if char in _ESCAPED or ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0:
        return "".join(f"%{byte:02X}" for byte in char.encode())
    return char


def _cut(text: str) -> str:
    safe = ""
    for char in text:
        longer = safe + _escape(char)
        if len(longer.encode()) > _KEPT_WHEN_CUT:
            break
        safe = longer
    return safe


@lru_cache(CACHE_SIZE)
def _row(kind: str, name: str) -> tuple[str, int]:
    number = _small_int(name)
    return (f"{kind},{name}", 0) if number is None else (kind, number)


def _small_int(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
        return None
    number = int(text)
    return number if str(number) == text and number in _INT32 else None


READ_LOCK_PREFIX = "readlock:"
WRITE_LOCK_PREFIX = "writelock:"


class KeyPair(Resource):
    """One resource that is locked by ``readlock:<name>`` and ``writelock:<name>``.

    The name is ``type:id``, as it is. Never equal to a ``Resource`` of the same names:
    it is another lock.
    """

    __slots__ = ()

    def __new__(cls, type: str, id: str, kind: str = "pair") -> Self:  # noqa: A002 - the fields of a resource
        """As a ``Resource``."""
        return super().__new__(cls, type, id, kind)

    @property
    def shown(self) -> tuple[str, str]:
        """As they are."""
        return self.type, self.id

    @property
    def key(self) -> str:
        """What both keys end in."""
        return f"{self.type}:{self.id}"

    @property
    def label(self) -> str:
        """The same, for people."""
        return self.key


def key_pair(datatype: str, resource_id: ResourceId) -> KeyPair:
    """The pair of that name.

    The keys are published and not encoded: ``("a", "b:c")`` and ``("a:b", "c")`` have
    the same, so they are the same lock, and equal.

    Raises:
        ConfigurationError: a part that is empty, of a wrong type, not valid Unicode, or
            has a control character in it.
    """
    if not isinstance(datatype, str):
        raise ConfigurationError(
            what=f"datatype must be str, not {type(datatype).__name__}"
        )
    parts = (datatype, id_text(resource_id))
    if not all(parts):
        raise ConfigurationError(what="an empty name cannot be locked")
    return key_pair_from(":".join(parts))


def key_pair_from(name: str) -> KeyPair:
    """The pair whose keys end in this name.

    Raises:
        ConfigurationError: it can be no such name.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            what=f"{quoted(name)} is not valid Unicode text"
        ) from None
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in name):
        raise ConfigurationError(
            what=f"{quoted(name)} has a control character in it",
            hint="names stand in published keys as they are",
        )
    kind, _, rest = name.partition(":")
    if not (kind and rest):
        raise ConfigurationError(what=f"{quoted(name)} has no datatype, or no id")
    return KeyPair(kind, rest)
