"""A driver whose connections are whatever a test says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.cas.driver.external_pool import ExternalPool
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import Driver
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError


@dataclass(frozen=True, slots=True)
class FakeOptions(ConnectionOptions):
    """Of a database that is called "db"."""

    @property
    def where(self) -> str:
        return "db"


class FakeDriver(Driver[Any]):
    """Connects at once; each error leaves its connection unusable."""

    package = "fake"

    def __init__(
        self, *, connect_timeout: float = 30.0, call_timeout: float = 60.0
    ) -> None:
        super().__init__(
            FakeOptions(connect_timeout=connect_timeout, call_timeout=call_timeout)
        )

    async def connect(self) -> Any:  # noqa: ANN401
        return object()

    async def close(self, connection: Any) -> None:  # noqa: ANN401
        """In order."""

    def abort(self, connection: Any) -> None:  # noqa: ANN401
        """At once."""

    def is_healthy(self, connection: Any) -> bool:  # noqa: ANN401
        del connection
        return True

    def is_broken(self, error: BaseException) -> bool:
        return isinstance(error, OSError)

    def map_error(self, error: BaseException) -> BackendError | ConfigurationError:
        return BackendUnavailable(what=f"{self.options.where}: {error}")

    def lend(self, given: object) -> ExternalPool[Any]:
        raise ConfigurationError(what=f"{given} is none")

    def schema_statements(self) -> list[str]:
        return []

    async def execute(self, statement: str, connection: Any) -> None:  # noqa: ANN401
        """There is no server."""
