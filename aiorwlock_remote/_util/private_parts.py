"""What to do where a library lacks a private part that this package uses.

The places that use private parts of libraries are listed in ``docs/architecture.md``
and in ``tests/test_private_parts.py``. Each place checks once, before it uses its part,
whether the part is there. If not, it takes the library's public way and calls
``report_differing``. If there is no public way, it raises ``no_public_way``.
"""

from __future__ import annotations

import logging

from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.libraries")

_reported: set[tuple[str, str]] = set()


def report_differing(library: str, part: str, instead: str) -> None:
    """Log, once per process, that ``library`` has no such part.

    Args:
        library: Name of the library's distribution.
        part: The private name that is missing, or behaves in another way.
        instead: What this package does now, and what that costs.
    """
    if (library, part) in _reported:
        return
    _reported.add((library, part))
    log_event(
        log,
        "library_differs",
        library=library,
        version=version_of(library),
        part=part,
        instead=instead,
    )


def no_public_way(library: str, part: str, known: str, hint: str = "") -> Unsupported:
    """Return the error for a missing part without which the package cannot work.

    Args:
        library: Name of the library's distribution.
        part: The name that is missing, or behaves in another way.
        known: The versions that are known to work.
        hint: Another way for the user; empty: to install a version that works.
    """
    return Unsupported(
        what=f"{library} {version_of(library)} has no {part}, as {known} have",
        hint=hint or f"install {known}",
    )


def version_of(library: str) -> str:
    """Return the installed version of a distribution, or ``"unknown"``."""
    # Rarely needed, and a tenth of the time to import this package.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
