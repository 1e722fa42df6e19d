"""The harness of MySQL."""

from __future__ import annotations

from tests.conformance.stores.mariadb import MariadbHarness


class MysqlHarness(MariadbHarness):
    """``mysql://``: as ``mariadb://``, on another server."""
