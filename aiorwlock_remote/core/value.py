"""Values: small objects that are never changed once they are made.

Type checkers treat them as frozen. At runtime they are not: every request makes a
handful of them, and freezing makes each five times as dear to create (1.2 µs against
0.2 µs for eleven fields).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A slotted dataclass, equal and hashed by its fields, frozen to type checkers."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 - given to others
else:

    def replace(old: T, /, **changes: object) -> T:
        """Another one with some fields changed; a third of the time of Python's own.

        What ``__post_init__`` checks is not checked again.
        """
        new = object.__new__(type(old))
        for name in old.__slots__:
            setattr(new, name, changes[name] if name in changes else getattr(old, name))
        return new
