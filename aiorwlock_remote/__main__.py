"""Lets ``python -m aiorwlock_remote`` run the command ``rwlock``."""

from __future__ import annotations

import sys

from aiorwlock_remote.cli.main import main

sys.exit(main())
