"""A Lua script, as a connection sends it: by its hash, its text only if asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1

Arg = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A script: ``sha`` is how the server names it.

    ``waits``: whether it may give a place, whose owner is told of its turn.
    """

    name: str
    text: str = field(repr=False)
    waits: bool = True
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Named by what it says."""
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


Request = tuple[Script, tuple[Arg, ...]]
"""A script, and what follows its hash: the number of keys, the keys, the arguments."""
