from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Died,
    Failed,
    Granted,
    History,
    Lost,
    Refused,
    Released,
    Releasing,
    Unknown,
    encode_event,
    now,
    read_history,
)

if TYPE_CHECKING:
    from pathlib import Path

ASK = Ask("w1", "catalog,7", "0123456789ab", 5, "R")


# -------------------------------------------------------------------- writer


def test_an_attempt_tells_its_story(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    begin = now()
    with History(path, process="w1") as history:
        attempt = history.ask("catalog,7", "W")
        attempt.granted(fence=3, until=100)
        attempt.access(step=1, serial=8, until=200)
        attempt.access(step=2, serial=None, until=None)
        attempt.releasing(until=300)
        attempt.released(ok=True)
        attempt.lost("expired")
        history.died("w2")
    assert attempt.until == 300
    ask, granted, one, two, releasing, released, lost, died = read_history([path])
    assert isinstance(ask, Ask)
    assert isinstance(releasing, Releasing)
    times = [event.at for event in read_history([path])]
    assert times == sorted(times)
    assert begin <= times[0]
    assert times[-1] <= now()
    head = ("w1", "catalog,7", attempt.holder)
    assert ask == Ask(*head, ask.at, "W")
    assert granted == Granted(*head, granted.at, ask.at, "W", 3, 100)
    assert one == Access(*head, one.at, "W", 3, 1, 8, 200)
    assert two == Access(*head, two.at, "W", 3, 2, None, None)
    assert releasing == Releasing(*head, releasing.at, 300)
    assert released == Released(*head, released.at, releasing.at, ok=True)
    assert lost == Lost(*head, lost.at, "expired")
    assert died == Died("w2", died.at)


def test_an_attempt_may_end_without_a_grant(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    with History(path) as history:
        for _ in range(3):
            history.ask("catalog,7", "R", holder="0123456789ab")
        history.ask("catalog,7", "R").refused()
        history.ask("catalog,7", "R").failed()
        history.ask("catalog,7", "R").unknown()
    events = list(read_history([path]))
    kinds = [type(event) for event in events]
    assert kinds == [Ask, Ask, Ask, Ask, Refused, Ask, Failed, Ask, Unknown]
    assert {event.process for event in events} == {str(os.getpid())}


def test_attempts_get_names_of_12_hex_digits(tmp_path: Path) -> None:
    with History(tmp_path / "h") as history:
        names = {history.ask("r", "R").holder for _ in range(100)}
        assert history.ask("r", "R", holder="mine").holder == "mine"
    assert len(names) == 100
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in names)


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    with History(path, process="w1") as history:
        assert repr(history) == f"<History {str(path)!r} of process w1>"
        history.write(ASK)
        assert list(read_history([path])) == [ASK]


def test_threads_share_a_history(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    with History(path) as history:

        def write() -> None:
            for _ in range(200):
                history.write(ASK)

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert list(read_history([path])) == [ASK] * 800


def test_a_killed_process_leaves_a_readable_history(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    code = (
        "import sys; from aiorwlock_remote.testing.history import History\n"
        "history = History(sys.argv[1])\n"
        "while True: history.ask('catalog,7', 'R').refused()"
    )
    with subprocess.Popen([sys.executable, "-c", code, path]) as child:
        while not path.exists() or path.stat().st_size < 100_000:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    events = list(read_history([path]))
    assert len(events) > 800
    assert len(events) + 1 >= path.read_bytes().count(b"\n")


def test_a_full_disk_is_not_passed_over() -> None:
    with History("/dev/full") as history, pytest.raises(OSError, match="space"):
        history.write(ASK)


def test_half_a_line_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with History(tmp_path / "w1.jsonl") as history:
        half = io.BytesIO()
        monkeypatch.setattr(half, "write", lambda line: len(line) // 2)
        history.close()
        monkeypatch.setattr(history, "_file", half)
        with pytest.raises(OSError, match=r"w1\.jsonl: short write"):
            history.write(ASK)


# -------------------------------------------------------------------- reader


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_bytes(encode_event(ASK) * 2 + encode_event(ASK)[:20])
    assert list(read_history(paths)) == [ASK] * 4


def test_a_history_is_continued_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    path.write_bytes(encode_event(ASK) + encode_event(ASK)[:20])
    with History(path) as history:
        history.write(ASK)
    assert list(read_history([path])) == [ASK, ASK]


def test_a_last_line_that_lacks_only_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    path.write_bytes(encode_event(ASK).rstrip())
    assert list(read_history([path])) == [ASK]


def test_any_other_broken_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    path.write_bytes(
        encode_event(ASK) + encode_event(ASK)[:20] + b"\n" + encode_event(ASK)
    )
    with pytest.raises(ValueError, match=r"w1\.jsonl:2: "):
        list(read_history([path]))
