"""``python -m benchmarks.cassandra``."""

from __future__ import annotations

import sys

from benchmarks.cassandra.run import main

sys.exit(main())
