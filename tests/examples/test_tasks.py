"""The examples without a web server, each run as a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.examples.fix_site import EXAMPLES, environment


def start(folder: Path, *command: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, EXAMPLES / command[0], *command[1:]],
        env=environment(folder, **more),
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def output(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    return text


def test_every_example_is_in_the_table_and_has_a_test() -> None:
    table = (EXAMPLES / "README.md").read_text("utf-8")
    tests = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("*.py"))
    names = [path.stem for path in EXAMPLES.glob("*.py")]
    assert names
    assert [name for name in names if f"]({name}.py)" not in table] == []
    assert [name for name in names if name not in tests] == []


def test_trio_task(tmp_path: Path) -> None:
    text = output(start(tmp_path, "trio_task.py"))
    read = re.findall(r"^reader \d reads (\d+) and (\d+) in phase", text, re.MULTILINE)
    assert len(read) == 6
    assert {(int(price), int(taxed)) for price, taxed in read} <= {
        (10, 12),
        (20, 24),
        (30, 36),
    }
    assert re.findall(r"^writer \w writes (\d+)", text, re.MULTILINE) == ["20", "30"]
    assert text.endswith("done: {'price': 30, 'with_tax': 36}\n")


def test_anyio_task_works_in_one_process_at_a_time(tmp_path: Path) -> None:
    loops = ("asyncio", "trio", "asyncio")
    running = [start(tmp_path, "anyio_task.py", loop, ROUNDS="4") for loop in loops]
    texts = [output(process) for process in running]
    fences = []
    for text in texts:
        rounds = re.findall(r"round (\d+), fence (\d+)", text)
        assert [number for number, _ in rounds] == ["1", "2", "3", "4"]
        (fence,) = {fence for _, fence in rounds}
        fences.append(int(fence))
    # Four rounds take 0.2 s: who came next was let in that much later.
    assert all(b - a >= 190_000 for a, b in pairwise(sorted(fences)))


def test_decorated_refunds_one_order_at_a_time(tmp_path: Path) -> None:
    """``decorated.py``."""
    text = output(start(tmp_path, "decorated.py"))
    done = "5 of order 1, 7 of order 1, 5 of order 2, 7 of order 2"
    assert text.endswith(f"refunded: {done}\n")
    for order in ("1", "2"):
        steps = re.findall(rf"order {order} (begins|ends)", text)
        assert steps == ["begins", "ends"] * 2


def test_api_calls_two_at_a_time(tmp_path: Path) -> None:
    """``api_calls.py`` in two processes."""
    processes = [start(tmp_path, "api_calls.py") for _ in range(2)]
    begun: list[str] = []
    for text in map(output, processes):
        running = 0
        for word in re.findall(r"call \d (begins|ends)", text):
            running += 1 if word == "begins" else -1
            assert running <= 2
            begun += [word] if word == "begins" else []
    assert len(begun) == 12
