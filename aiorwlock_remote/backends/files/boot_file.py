"""``.boot``: which boot of this host, and which clock of it, the files' times are of.

Not synced, as it is of no use to the next boot: a power cut may leave it blank.
"""

from __future__ import annotations

import json
import os
from typing import Any

from aiorwlock_remote.backends.files.safe_open import content
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.errors import BadRecord

BOOT = ".boot"
_LENGTH = 512


def kept_boot(path: str) -> BootId | None:
    """What the file at ``path`` says; None: nothing.

    Raises:
        BadRecord: nothing of ours.
        OSError: it is not there, or whatever else the system says.
    """
    text = content(path, _LENGTH).strip(b"\0 \n")
    if not text:
        return None
    try:
        told: Any = json.loads(text)
        return BootId(str(told["boot"]), str(told["shift"]))
    except (ValueError, KeyError, TypeError):
        raise BadRecord(
            what=f"{path} is not ours, or damaged",
            hint="remove it while no process uses the directory",
        ) from None


def keep_boot(file: int, boot: BootId) -> None:
    """Write it, in one piece. ``file``: open, and locked."""
    text = json.dumps({"boot": boot.id, "shift": boot.shift})
    os.pwrite(file, text.encode().ljust(_LENGTH - 1) + b"\n", 0)
