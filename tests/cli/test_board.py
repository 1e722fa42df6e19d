"""`rwlock board` on the command line: what it says, and what it refuses."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

from aiorwlock_remote.cli import board
from tests.cli.fix_cli import TIMEOUT, Store, environment, here


def test_the_help_says_loudly_that_there_is_no_login() -> None:
    done = here(["board", "--help"], environment())
    assert "THE PAGE HAS NO LOGIN" in done.stdout
    assert "127.0.0.1" in done.stdout
    assert "ANYBODY WHO REACHES IT CAN" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (("--host", "0.0.0.0", "--allow-break"), "WARNING: listening on 0.0.0.0"),  # noqa: S104
        ((), "no login: anybody on this machine sees all locks"),
    ],
)
def test_the_board_warns_at_its_start(
    store: Store, words: tuple[str, ...], warning: str
) -> None:
    store.leave_behind("order", "7", "a")
    with store.running("board", "--port", "0", *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = process.stdout.readline().strip().rstrip("/").rpartition(":")[2]
        output = process.stderr.readline()
        assert output.startswith(f"rwlock: {warning}")
        assert ("CAN END THEM" in output) is bool(words)
        text = httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).text
        assert ('content="yes"' in text) is bool(words)
        assert "No login of its own" in text
        assert ("CAN END THEM" in text) is bool(words)
        if words:
            end_grant(f"http://127.0.0.1:{port}/")
            output = process.stderr.readline()
            assert "rwlock: forced resource=order/7 holder=" in output
            assert "reason=db-2 was shut down (on the board, from 127.0.0.1)" in output
            assert store.json("ls") == []
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 128 + signal.SIGINT


def end_grant(url: str) -> None:
    """As the page does, which sees the one holder there is."""
    headers = {"origin": url.rstrip("/"), "x-rwlock-board": "1"}
    with (
        httpx.Client(base_url=url, headers=headers, trust_env=False) as http,
        http.stream("GET", "events") as stream,
    ):
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
        (row,) = json.loads(line[6:])["rows"]
        seen = {key: row["holders"][0][key] for key in ("holder", "fence")}
        body = {"row": row["row"], "reason": "db-2 was shut down", **seen}
        assert http.post("break", json=body).json() == {"broken": True}


@pytest.mark.parametrize(
    "words",
    [
        ("--every", "0.1"),
        ("--port", "70000"),
        ("--host", "no such host"),
        ("--url", "sqlite:////no/such/file.db"),
        ("--url", "memory://"),
    ],
)
def test_requests_that_the_board_refuses(store: Store, words: tuple[str, ...]) -> None:
    store.leave_behind("order", "7", "a")
    done = here(["board", *words], environment(RWLOCK_URL=store.url))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "find_spec", {}.get)
    done = here(["board"], environment(RWLOCK_URL=store.url))
    assert done.returncode == 2
    assert "pip install 'aiorwlock-remote[board]'" in done.stderr
