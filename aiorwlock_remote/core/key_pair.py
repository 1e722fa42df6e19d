"""A readers-writer lock on a pair of published keys: a set and a string (S3)."""

from __future__ import annotations

from typing import Self

from aiorwlock_remote.core.names import Resource, ResourceId, id_text
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError

READ_LOCK = "readlock:"
WRITE_LOCK = "writelock:"


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


def pair(datatype: str, resource_id: ResourceId) -> KeyPair:
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
    return pair_of(":".join(parts))


def pair_of(name: str) -> KeyPair:
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
