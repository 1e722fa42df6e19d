"""Exit codes; drawn in the epilog of ``rwlock --help``."""

from __future__ import annotations

REFUSED = 1
"""Not done, or what was found is not what it should be."""
USAGE = 2
"""Bad input: a name, number, URL or option that cannot be used."""
UNAVAILABLE = 69
"""The store is down, unreachable or not fit for us; EX_UNAVAILABLE of sysexits.h."""
CONFLICT = 75
"""The lock was not obtained in time; EX_TEMPFAIL."""
LOST = 76
"""The lock was lost while the command ran."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL = 128
"""Plus the number of the signal that ended the command."""
