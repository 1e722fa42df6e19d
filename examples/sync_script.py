"""A script, as cron starts it: it does nothing if another one is still at work."""

from __future__ import annotations

import os
import sys
import time

from aiorwlock_remote.sync import LockLost, LockTimeout, connect

STEPS = 5


def main() -> int:
    """Write the report; return the exit code."""
    with connect(os.environ.get("LOCKS_URL", "sqlite:///locks.db")) as locks:
        try:
            with locks.mutex("report", "daily").acquire(timeout=0) as held:
                for step in range(STEPS):
                    held.check()  # raises LockLost if the lock was lost
                    time.sleep(0.05)
                    print("step", step, "of fence", held.fence)
        except LockTimeout as exc:
            print("already running:", *exc.holders)
            return 0
        except LockLost as exc:
            print("the lock was lost:", exc.reason)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
