"""The peer in Go, built if there is a Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "go"
LONGEST = 300.0


def build(folder: Path) -> Path | str:
    """The program, put into the folder; or why there is none."""
    go = shutil.which("go")
    if go is None:
        return "there is no go on PATH"
    program = folder / "peer"
    command = [go, "build", "-o", str(program), "."]
    try:
        ran = subprocess.run(
            command,
            cwd=SOURCE,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "go build took too long"
    if ran.returncode != 0:
        return f"go build failed ({ran.stderr.strip().splitlines()[-1]})"
    return program
