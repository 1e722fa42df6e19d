"""Exit codes of all commands; ``rwlock --help`` lists them for users."""

from __future__ import annotations

REFUSED = 1
"""The command was not carried out, or it found something bad."""
USAGE = 2
"""Bad input: a name, number, URL or option that cannot be used."""
UNAVAILABLE = 69
"""The store is down, unreachable or not fit for locks; EX_UNAVAILABLE of sysexits.h."""
CONFLICT = 75
"""``run`` did not obtain the lock in time; EX_TEMPFAIL of sysexits.h."""
LOST = 76
"""``run`` lost the lock while its command ran."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL = 128
"""Base of the codes for signals: the number of the signal is added."""
