"""A database server over files of its own: what those of all kinds have in common."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.servers.process import end_of, free_port, until
from tests.servers.server import Server
from tests.servers.template import copied

STARTS_IN = 60.0


class Database(Server):
    """One of a test's own, to be stopped and killed. It keeps its files.

    ``config``: settings beside ours.
    """

    user: ClassVar[str]
    """Who runs it; it refuses to run as root."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self._config = dict(config or {})
        name = self.program.lower()
        self._home = copied(folder.parent, name, self.user, self.made)
        self.port: int = 0
        self.begin()

    @staticmethod
    @abstractmethod
    def made() -> Path:
        """The files of a new one, in a folder that its user may enter."""

    @abstractmethod
    def serving(self) -> list[str]:
        """Runs it over its files, at its port, with ``config``."""

    def choose_ports(self) -> None:
        self.port = free_port()

    def command(self) -> list[str]:
        # The guard throws away what it writes.
        script = f'exec "$@" >>{self.folder / self.log_name} 2>&1'
        return ["sh", "-c", script, "run", *self.serving()]

    def close(self) -> None:
        """Gone, with its data."""
        super().close()
        shutil.rmtree(self._home, ignore_errors=True)


def wait_for(program: str, serves: Callable[[], bool], home: Path) -> None:
    """Until the shared one serves; else the test fails with what it wrote."""
    try:
        until(serves, f"{program} takes connections", STARTS_IN)
    except TimeoutError:
        pytest.fail(f"{program} does not start: {end_of(home / 'log')}")
