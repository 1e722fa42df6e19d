"""Who is paused past its lease: refused by fences, and what happens without them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.examples.fix_site import EXAMPLES

OUTPUT = """\
writer, without fences
  writer: told at the next look: expired
  writer: wrote
  the prices are 11, 24 with tax
writer, with fences
  writer: told at the next look: expired
  writer: refused
  the prices are 20, 24 with tax
reader, without fences
  reader: told at the next look: expired
  reader: 10, 24 with tax
  the prices are 20, 24 with tax
reader, with fences
  reader: told at the next look: expired
  reader: refused
  the prices are 20, 24 with tax
"""


@pytest.mark.slow
def test_paused() -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "paused.py"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == OUTPUT
    page = (EXAMPLES.parent / "docs" / "howto" / "fences.md").read_text("utf-8")
    assert OUTPUT.partition("reader,")[0] in page
