"""Values: small objects that never change after they are made.

Type checkers treat them as frozen. At run time they are not: every request makes a
handful, and a frozen dataclass takes five times as long to create (1.2 µs against 0.2
µs for eleven fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")


_COPY: dict[type, Callable[[Any], Any]] = {}


def _copier(cls: type) -> Callable[[Any], Any]:
    """Return a function that copies one faster than a loop over its fields does."""
    names: tuple[str, ...] = getattr(cls, "__slots__")  # noqa: B009 - slots=True
    lines = "".join(f"    new.{name} = old.{name}\n" for name in names)
    code = f"def copied(old):\n    new = blank(cls)\n{lines}    return new\n"
    known: dict[str, Any] = {"blank": object.__new__, "cls": cls}
    exec(code, known)  # noqa: S102 - as dataclasses does; the text is ours
    copied: Callable[[Any], Any] = known["copied"]
    return copied


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a slotted, hashable dataclass that type checkers take for a frozen one."""
    made = dataclass(slots=True, unsafe_hash=True)(cls)
    _COPY[made] = _copier(made)
    return made


if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 - given to others
else:

    def replace(old: T, /, **changes: object) -> T:
        """Return a copy with some fields changed, without running ``__post_init__``.

        It takes a fifth of the time of ``dataclasses.replace``.
        """
        new = _COPY[type(old)](old)
        for name, changed in changes.items():
            setattr(new, name, changed)
        return new
