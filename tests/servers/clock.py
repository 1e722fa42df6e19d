"""Servers whose wall clock is off, while everybody else's is right."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.process import needed

SOURCE = Path(__file__).with_name("clock.c")


def off_by(seconds: int, folder: Path) -> list[str]:
    """What goes before a command, so that its clock is ahead by so much (or behind).

    ``folder``: for what has to be compiled.
    """
    if not seconds:
        return []
    library = folder / "clock.so"
    if not library.exists():
        compiler = needed("gcc", "gcc libc6-dev")
        flags = ("-O2", "-Wall", "-Werror", "-shared", "-fPIC")
        subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)
    return ["env", f"LD_PRELOAD={library}", f"CLOCK_OFFSET={seconds}"]
