"""Libraries of ours that a process loads before all others."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.process import needed


def preloading(source: Path, folder: Path, **settings: str) -> list[str]:
    """What goes before a command; ``settings``: what the library finds around it.

    ``folder``: for what has to be compiled.
    """
    library = folder / f"{source.stem}.so"
    if not library.exists():
        compiler = needed("gcc", "gcc libc6-dev")
        flags = ("-O2", "-Wall", "-Werror", "-shared", "-fPIC")
        subprocess.run([compiler, *flags, "-o", library, source], check=True)
    given = [f"{name}={value}" for name, value in settings.items()]
    return ["env", f"LD_PRELOAD={library}", *given]
