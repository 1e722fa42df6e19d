"""The module ``python -m aiorwlock_remote.cli``, which is ``rwlock``."""

from __future__ import annotations

import sys

from aiorwlock_remote.cli.main import main

sys.exit(main())
