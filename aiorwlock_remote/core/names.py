"""Names: any (type, id) that a user may choose, as a name that every store accepts.

The encoding is injective, and a plain name comes out exactly as the published layouts
have it: ``("foobar", 123)`` → ``foobar,123``. Characters with a meaning in some store
(``% { } , /`` and control characters) are percent-encoded. A name of more than 200
bytes is cut and ends in ``%~`` and its SHA-256, which no ordinary name contains. The
type of a semaphore ends in ``%semaphore``, which no encoded name does, so that a
semaphore and a lock of one name are two resources.

Functions that take users' names raise ``ConfigurationError`` for a name that is empty,
of a wrong type, or not valid Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Self
from urllib.parse import unquote
from uuid import UUID

from aiorwlock_remote.core.text import (
    check_str,
    check_text,
    check_unicode,
    has_control_character,
    quoted,
)
from aiorwlock_remote.errors import ConfigurationError

ResourceId = int | str | UUID
"""Compared by its text: 42 and "42" are one resource."""

MAX_NAME_BYTES = 200
SEMAPHORE = "%semaphore"
"""How the encoded type of a semaphore ends."""
_KEPT_WHEN_CUT = 100
# Encoded names kept: the published calls pass their name each time.
CACHE_SIZE = 1024
_ESCAPED = frozenset("%{},/")
_SHOWN_CUT = re.compile("…[0-9a-f]{8}$")
# A percent sign before anything else was written by another program.
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_IDS = int, str, UUID
_INT32 = range(-(2**31), 2**31)


class Resource(NamedTuple):
    """A thing that can be locked. The ids 42 and "42" name the same thing.

    ``type`` and ``id`` are encoded; ``label`` is for people and is not compared.
    """

    # A tuple, because every request looks the resource up in several tables.
    type: str
    id: str
    # Not empty for mutexes of a set and for key pairs: they are other locks.
    kind: str = ""

    @property
    def key(self) -> str:
        """``type,id``, as in the key of the published mutex record."""
        return f"{self.type},{self.id}"

    @property
    def shown(self) -> tuple[str, str]:
        """Type and id as the user wrote them."""
        return decode(self.type.removesuffix(SEMAPHORE)), decode(self.id)

    @property
    def is_semaphore(self) -> bool:
        """Whether the resource is a semaphore, and not a lock of the same name."""
        return self.type.endswith(SEMAPHORE) and not self.kind

    @property
    def label(self) -> str:
        """``type/id``, for errors, logs and tables."""
        # A plain slash in the type would make two resources look the same, and a person
        # could name only one of them (test_slashes_as_they_are_shown).
        kind, name = self.shown
        return f"{kind.replace('%', '%25').replace('/', '%2F')}/{name}"

    @property
    def row(self) -> tuple[str, int]:
        """Key of the resource's row in the published SQL table: text and integer."""
        # All other ids go into the text column, after a comma. No encoded type has one,
        # so the two forms never meet (test_rows).
        return _row(self.type, self.id)


class _Prefixed(Resource):
    # In the instance's dictionary, because a tuple has no slots; and so no part of
    # comparisons: the resource equals the one a store reads from its keys.
    prefix: str

    @property
    def shown(self) -> tuple[str, str]:
        kind, name = super().shown
        return kind.removeprefix(self.prefix), name


def resource(resource_type: str, resource_id: ResourceId, prefix: str = "") -> Resource:
    """Return the resource with this type and id; its type begins with the prefix."""
    kind = encode_type(resource_type, prefix)
    return _shown(Resource(kind, encode(id_text(resource_id))), prefix)


# ``typed``: True equals the id 1 (test_a_value_equal_to_a_cached_name_is_refused).
cached_resource: Callable[..., Resource] = lru_cache(CACHE_SIZE, typed=True)(resource)
"""``resource`` with a cache; ``TypeError`` for a type or id that is not hashable."""


def semaphore(
    resource_type: str, resource_id: ResourceId, prefix: str = ""
) -> Resource:
    """Return the resource of a semaphore with this type and id."""
    kind = semaphore_type(resource_type, prefix)
    return _shown(Resource(kind, encode(id_text(resource_id))), prefix)


def semaphore_type(resource_type: str, prefix: str = "") -> str:
    """Return ``Resource.type`` of semaphores whose type the user calls so."""
    kind = encode_type(resource_type, prefix)
    if len((kind + SEMAPHORE).encode()) > MAX_NAME_BYTES:
        kind = _cut_with_digest(prefix + resource_type)
    return kind + SEMAPHORE


def encode_type(resource_type: str, prefix: str = "") -> str:
    """Return ``Resource.type``: prefix and type, encoded as one text."""
    check_str("resource type", resource_type)
    return encode(prefix + resource_type if resource_type else "")


def resource_under_prefix(found: Resource, prefix: str) -> Resource | None:
    """Return a stored resource so that its ``shown`` omits the prefix of a ``Locks``.

    None if its type does not begin with the prefix. Key pairs and mutexes of a set are
    returned unchanged: their store adds the prefix to their keys.
    """
    if found.kind:
        return found
    if not prefix:
        return Resource(*found)  # without the prefix under which it was found
    start = encode(prefix)
    ours = found.type.startswith(start) and found.type != start
    return _shown(found, prefix) if ours else None


def _shown(found: Resource, prefix: str) -> Resource:
    if not prefix:
        return found
    shown = _Prefixed(*found)
    shown.prefix = prefix
    return shown


def resource_from_row(row_type: str, row_id: int) -> Resource:
    """Return the resource of a row of the published SQL table: text and integer."""
    kind, comma, name = row_type.partition(",")
    return Resource(kind, name) if comma else Resource(row_type, str(row_id))


def resource_from_key(key: str) -> Resource:
    """Return the resource whose mutex record has the key ``type,id``, encoded."""
    kind, _, name = key.partition(",")
    return Resource(kind, name)


def split_label(label: str) -> tuple[str, str]:
    """Return type and id of a ``type/id`` label; the id is "" if there is none."""
    kind, _, name = label.partition("/")
    return type_from_label(kind), name


def type_from_label(shown: str) -> str:
    """Return the type in a ``type/id`` label, as the user wrote it."""
    return unquote(shown)


@lru_cache(CACHE_SIZE)
def encode(text: str) -> str:
    """Return a type or an id, percent-encoded and cut to 200 bytes at most."""
    if not text:
        raise ConfigurationError(what="an empty name cannot be locked")
    check_unicode(quoted(text), text)
    safe = "".join(_escape(c) for c in text)
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    return _cut_with_digest(text)


def decode(name: str) -> str:
    """Return an encoded name as the user wrote it.

    If the name was cut, the result ends in eight digits of its hash. Invalid UTF-8, as
    in a file's name, becomes replacement characters; half a surrogate pair, as in a
    message of another program, becomes a question mark.
    """
    head, mark, digest = name.partition("%~")
    try:
        raw = head.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raw = head.encode(errors="replace")
    plain = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), raw)
    return plain.decode(errors="replace") + ("…" + digest[:8] if mark else "")


def is_cut(shown: str) -> bool:
    """Return True if a name from ``decode`` was too long to be stored whole."""
    return _SHOWN_CUT.search(shown) is not None


def check_prefix(prefix: object) -> str:
    """Return the prefix of a ``Locks`` if it is valid.

    Raise ``ConfigurationError`` if it has a comma, brace, percent sign or control
    character, is not Unicode text, or is too long.
    """
    text = check_str("prefix", prefix)
    # Braces would move the keys to another slot of a Redis Cluster.
    if any(c in "{},%" or ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        raise ConfigurationError(
            what=f"prefix {quoted(text)} has a character that is not allowed",
            hint="no braces, commas, percent signs or control characters",
        )
    check_text("prefix", text)
    # A type that is cut must still begin with the prefix (``resource_under_prefix``).
    if text and len(encode(text).encode()) > _KEPT_WHEN_CUT:
        raise ConfigurationError(
            what=f"prefix {quoted(text)} is too long",
            hint=f"at most {_KEPT_WHEN_CUT} bytes, a slash counting as three",
        )
    return text


def id_text(resource_id: ResourceId) -> str:
    """Return an id as text, so that 42 and "42" are the same."""
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
    if char in _ESCAPED or has_control_character(char):
        return "".join(f"%{byte:02X}" for byte in char.encode())
    return char


def _cut_with_digest(text: str) -> str:
    return _cut(text) + "%~" + sha256(text.encode()).hexdigest()


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
    """A resource locked by two published keys: ``readlock:name``, ``writelock:name``.

    The name is ``type:id``, not encoded. A plain ``Resource`` with equal type and id is
    another lock.
    """

    __slots__ = ()

    def __new__(cls, type: str, id: str, kind: str = "pair") -> Self:  # noqa: A002 - the fields of a resource
        return super().__new__(cls, type, id, kind)

    @property
    def shown(self) -> tuple[str, str]:
        return self.type, self.id

    @property
    def key(self) -> str:
        return f"{self.type}:{self.id}"

    @property
    def label(self) -> str:
        return self.key


def key_pair(datatype: str, resource_id: ResourceId) -> KeyPair:
    """Return the pair of published keys that locks this id of this datatype."""
    # ("a", "b:c") and ("a:b", "c") have the same keys, so they are the same lock.
    parts = (check_str("datatype", datatype), id_text(resource_id))
    if not all(parts):
        raise ConfigurationError(what="an empty name cannot be locked")
    return key_pair_from(":".join(parts))


def key_pair_from(name: str) -> KeyPair:
    """Return the key pair of a name ``type:id``, or raise ``ConfigurationError``."""
    check_unicode(quoted(name), name)
    if has_control_character(name):
        raise ConfigurationError(
            what=f"{quoted(name)} has a control character in it",
            hint="names are part of published keys, unencoded",
        )
    kind, _, rest = name.partition(":")
    if not (kind and rest):
        raise ConfigurationError(what=f"{quoted(name)} has no datatype, or no id")
    return KeyPair(kind, rest)


class PlainKey(Resource):
    """A resource whose mutex record has a key of the user's choice: that of a lock of
    redis-py, ``order-42``. A store of another kind than Redis has none.
    """

    __slots__ = ()

    def __new__(cls, type: str, id: str, kind: str = "plain") -> Self:  # noqa: A002 - the fields of a resource
        return super().__new__(cls, type, id, kind)

    @property
    def shown(self) -> tuple[str, str]:
        return self.type, self.id

    @property
    def key(self) -> str:
        return self.id

    @property
    def label(self) -> str:
        return self.id


def plain_key(name: str) -> PlainKey:
    """Return the resource whose mutex record has this key, or raise
    ``ConfigurationError``.
    """
    if not check_str("lock name", name):
        raise ConfigurationError(what="an empty name cannot be locked")
    check_unicode(quoted(name), name)
    return PlainKey("", name)
