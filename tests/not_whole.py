"""A module whose import fails, as of an extension without its library."""

from __future__ import annotations

from json import no_such_name  # type: ignore[attr-defined] # noqa: F401
