"""``python -m benchmarks.sql``."""

from __future__ import annotations

import sys

from benchmarks.sql.run import main

sys.exit(main())
