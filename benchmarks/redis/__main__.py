"""``python -m benchmarks.redis``."""

from __future__ import annotations

import sys

from benchmarks.redis.run import main

sys.exit(main())
