"""The files of a new server, made once and copied for the next ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.servers.process import needed

_RUN = """
folder=$1; shift
"$@" >"$folder/log" 2>&1 &
server=$!
trap 'kill -{kill} $server; wait $server; rm -rf "$folder"; exit' TERM
wait $server
"""


def empty_home(program: str, user: str) -> Path:
    """A folder that ``user`` may enter; that of the tests is for ourselves alone."""
    home = Path(tempfile.mkdtemp(prefix=f"{program}-"))
    if not os.geteuid():
        shutil.chown(home, user, user)
    return home


def fill(home: Path, user: str, *command: str | Path) -> None:
    """Run there, as that user, what makes the files; else the test fails."""
    run = [*as_user(user), *command]
    made = subprocess.run(run, cwd=home, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.fail(f"{command[0]} fails: {made.stdout}{made.stderr}")


def as_user(user: str) -> list[str]:
    """What goes before the command of a server that refuses to run as root."""
    if os.geteuid():
        return []
    setpriv = needed("setpriv", "util-linux")
    return [setpriv, f"--reuid={user}", f"--regid={user}", "--init-groups"]


def leaving_nothing(home: Path, kill: str, command: Sequence[str]) -> list[str]:
    """Asked to go (SIGTERM), it gets the signal ``kill`` and leaves no file behind."""
    return ["sh", "-c", _RUN.format(kill=kill), "run", str(home), *command]


def copied(kept: Path, program: str, user: str, make: Callable[[], Path]) -> Path:
    """A home with a copy of the data that ``make`` made first, kept in ``kept``."""
    copy, template = needed("cp", "coreutils"), kept / f"{program}-template"
    if template.exists():
        home = empty_home(program, user)
        made, copies = template, home / "data"
    else:
        home = make()
        made, copies = home / "data", template
    subprocess.run([copy, "-a", made, copies], check=True)
    return home
