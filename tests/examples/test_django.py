"""The library of ``django_before.py`` and ``django_after.py``, at work."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = "django_before", "django_after"


def lent(module: str, folder: Path) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.examples.lend", module],
        cwd=ROOT,
        env={**os.environ, "LIBRARY": str(folder / "library.sqlite3")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_before_two_take_the_same_copy(tmp_path: Path) -> None:
    assert lent(BEFORE, tmp_path) == ["200 200 200", "1"], "three lent, two counted"


def test_after_the_change_the_second_is_refused(tmp_path: Path) -> None:
    statuses, copies, left = lent(AFTER, tmp_path)
    assert sorted(statuses.split()[:2]) == ["200", "423"]
    assert statuses.split()[2] == "200"
    assert (copies, left) == ("1", "0")


def changes() -> list[str]:
    """Between the two, without what they say of themselves."""
    before, after = (
        (ROOT / f"examples/{name}.py").read_text("utf-8").split('"""\n', 1)[1]
        for name in (BEFORE, AFTER)
    )
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))
    return [line for line in diff[2:] if line[0] in "+-" and len(line) > 1]


def test_the_change_to_locks_is_small_and_shown_on_the_page() -> None:
    found = changes()
    assert [line for line in found if line[0] == "-"] == [
        "-        for model in (Book,):"
    ]
    assert len(found) <= 20
    page = (ROOT / "docs/howto/occupancy.md").read_text("utf-8").splitlines()
    missing = [line for line in found if line not in page]
    assert missing == []
