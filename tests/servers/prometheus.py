"""A real Prometheus that scrapes programs of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.servers.process import IP, free_port, needed
from tests.servers.server import Server


class PrometheusServer(Server):
    """Reads ``prometheus.yml`` in its folder. Answers when the constructor returns."""

    program = "prometheus"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port: int = 0
        self.begin()

    def choose_ports(self) -> None:
        self.port = free_port()

    def command(self) -> tuple[str | Path, ...]:
        options = {
            "config.file": self.folder / "prometheus.yml",
            "storage.tsdb.path": self.folder / "data",
            "web.listen-address": f"{IP}:{self.port}",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        # Its messages go to stderr, which the guard of the process discards.
        log = self.folder / self.log_name
        shell = 'log=$1; shift; exec "$@" 2> "$log"'
        program = needed("prometheus", "prometheus")
        return "sh", "-c", shell, "prometheus", log, program, *words

    def log(self) -> str:
        """As other servers say that a port is taken."""
        return super().log().replace("address already", "Address already")

    def answers(self) -> bool:
        try:
            self._get("/-/ready")
        except (URLError, OSError):
            return False
        return True

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now: ``metric`` and ``value``."""
        reply = json.loads(
            self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        )
        assert reply["status"] == "success", reply
        found: list[dict[str, Any]] = reply["data"]["result"]
        return found

    def _get(self, path: str) -> bytes:
        with urlopen(f"http://{IP}:{self.port}{path}", timeout=10) as reply:
            text: bytes = reply.read()
            return text
