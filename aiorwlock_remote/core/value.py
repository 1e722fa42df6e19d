"""Values: small objects that are never changed once they are made.

Type checkers treat them as frozen. At runtime they are not: every request makes a
handful of them, and freezing makes each five times as dear to create (1.2 µs against
0.2 µs for eleven fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")


_COPY: dict[type, Callable[[Any], Any]] = {}


def _copier(cls: type) -> Callable[[Any], Any]:
    """A function that copies one, in a third of the time of a loop over its fields."""
    names: tuple[str, ...] = getattr(cls, "__slots__")  # noqa: B009 - slots=True
    lines = "".join(f"    new.{name} = old.{name}\n" for name in names)
    code = f"def copied(old):\n    new = blank(cls)\n{lines}    return new\n"
    known: dict[str, Any] = {"blank": object.__new__, "cls": cls}
    exec(code, known)  # noqa: S102 - as dataclasses does; the text is ours
    copied: Callable[[Any], Any] = known["copied"]
    return copied


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A slotted dataclass, equal and hashed by its fields, frozen to type checkers."""
    made = dataclass(slots=True, unsafe_hash=True)(cls)
    _COPY[made] = _copier(made)
    return made


if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 - given to others
else:

    def replace(old: T, /, **changes: object) -> T:
        """Another one with some fields changed; a fifth of the time of Python's own.

        What ``__post_init__`` checks is not checked again.
        """
        new = _COPY[type(old)](old)
        for name, changed in changes.items():
            setattr(new, name, changed)
        return new
