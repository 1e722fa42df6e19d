"""The live page, and what is logged, under uvicorn with four worker processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.integrations.board.model import row_key
from tests.cli.fix_cli import TIMEOUT, Store
from tests.conformance.stores.sqlite import PlainSqlite
from tests.servers.process import free_port

APP = "tests.integrations.board.workers_app:app"


@contextmanager
def workers(store: Store, count: int, log: Path) -> Iterator[str]:
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", APP, "--port", str(port)),
                *("--workers", str(count)),
            ],
            env=os.environ | {"BOARD_STORE": store.url},
            stdout=output,
            stderr=output,
        )
        try:
            end = time.monotonic() + 3 * TIMEOUT
            while log.read_text().count("startup complete") < count:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(3 * TIMEOUT)


@pytest.mark.slow
def test_every_worker_ends_what_the_page_shows(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/locks.db", PlainSqlite(tmp_path / "locks.db"))
    log = tmp_path / "log"
    key = row_key(resource("deploy", "db"))
    store.leave_behind("deploy", "db", "gluww")
    with workers(store, 4, log) as url:
        headers = {"origin": url, "x-rwlock-board": "1", "connection": "close"}
        for attempt in range(16):
            (seen,) = store.json("ls")
            (one,) = seen["holders"]
            fence = None if one["fence"] is None else str(one["fence"])
            wanted = {"row": key, "holder": one["holder"], "fence": fence}
            wanted["reason"] = "db-2 is down"
            # A connection for each request, which any of the workers may accept.
            answer = httpx.post(
                f"{url}/locks/break", json=wanted, headers=headers, timeout=TIMEOUT
            )
            assert (attempt, answer.json()) == (attempt, {"broken": True})
            assert store.json("ls") == []
            store.leave_behind("deploy", "db", "gluww")
        assert httpx.get(f"{url}/orders/db", timeout=TIMEOUT).status_code == 423
    text = log.read_text()
    assert "Traceback" not in text
    # The holder of a lock that is busy is named, and warnings have a time.
    line = r"^\d{4}-\d\d-\d\d [\d:,]+ %s aiorwlock_remote\.%s .*deploy/db"
    assert re.search(line % ("INFO", "http refused"), text, re.MULTILINE)
    forced = re.findall(line % ("WARNING", "audit forced"), text, re.MULTILINE)
    assert len(forced) == 16
