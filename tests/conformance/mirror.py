"""The Oracle store by the conformance suite, at the Mirror; `nox -s mirror` runs it.

Not part of the tests: a step takes a tenth of a second there, the suite half an hour.
"""

from __future__ import annotations

from collections.abc import Iterator

import oracledb
import pytest

from aiorwlock_remote.backends.oracle.statements import statements_of
from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import OracleHarness
from tests.servers.mirror import mirror_of
from tests.servers.postgresql import PostgresqlServer
from tests.servers.real_oracle import OracleDatabase

pytestmark = pytest.mark.no_uvloop("the driver leaves the loop to asyncio")


class MirrorHarness(OracleHarness):
    """One Mirror for all tests of a process."""

    patience = 120.0
    answers_in = 5.0
    short = 4.0
    kept = 20.0


@pytest.fixture(scope="module", autouse=True)
def _mirror(
    tmp_path_factory: pytest.TempPathFactory, postgresql_server: PostgresqlServer
) -> Iterator[None]:
    """With our tables."""
    with mirror_of(postgresql_server, tmp_path_factory.mktemp("mirror")) as mirror:
        with oracledb.connect(**mirror.login) as connection:
            for statement in statements_of():
                connection.cursor().execute(statement)
        MirrorHarness.user = OracleDatabase(mirror.url)
        yield


class TestMirror(ConformanceSuite):
    """On both libraries."""

    harness = MirrorHarness()
