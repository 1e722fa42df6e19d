"""The Django project ``shop``, which docs/howto/django.md shows: its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.fix_site import EXAMPLES

ROOT = EXAMPLES.parent


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a copy of the project, with no plugins but the needed ones."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull),
            *("--rootdir", str(folder), "-p", "no:cacheprovider", "-p", "no:asyncio"),
            *(
                "-W",
                "error::pytest.PytestUnknownMarkWarning",
                str(folder / "shop/test_shop.py"),
            ),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "shop", tmp_path / "shop")
    return tmp_path


def test_the_tests_of_the_project_pass(project: Path) -> None:
    ran = run_tests(project)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_without_its_lock_the_view_fails_its_tests(project: Path) -> None:
    """Control: the view takes another order's lock."""
    views = project / "shop/views.py"
    text = views.read_text("utf-8")
    assert 'hold("order:{order:int}"' in text
    views.write_text(text.replace("order:{order:int}", "invoice:{order:int}"), "utf-8")
    ran = run_tests(project)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "test_another_process_has_the_order" in ran.stdout


def test_the_page_shows_the_files_of_the_project() -> None:
    page = (ROOT / "docs/howto/django.md").read_text("utf-8")
    shown = {"settings", "views", "tasks", "test_shop", "conftest"}
    assert [name for name in shown if f"examples/shop/{name}.py" not in page] == []
