"""Builds the peers that are no worker in our own environment, in a folder of the run.

rueidislock is a program in Go, Redisson one in Java; redishilok is a worker in Python
with packages of its own. Each is left out where its tools or its packages are missing.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.suite import Programs
from benchmarks.redis.adapters import REDISHILOK, REDISSON, RUEIDIS

HERE = Path(__file__).parent
BUILD_TIMEOUT = 300.0
REDISHILOK_PACKAGES = ("redishilok==1.1.0", "redis[hiredis]==5.3.1")
MEMORY_OF_JAVA = ("-XX:+UseSerialGC", "-Xmx1g", "-Dorg.slf4j.simpleLogger=off")


class Missing(Exception):
    """A peer cannot be built here; the text says why."""


def programs(folder: Path, peers: set[str]) -> Programs:
    """Return the executables of these peers, and notes on those that are left out."""
    built: dict[str, Path] = {}
    notes: list[str] = []
    for peer in sorted(peers):
        own = folder / peer
        own.mkdir()
        try:
            built[peer] = _BUILDERS[peer](own)
        except Missing as exc:
            notes.append(f"{peer} is left out: {exc}.")
    return built, notes


def _rueidis(folder: Path) -> Path:
    go = _tool("go")
    program = folder / "peer"
    _run([go, "build", "-o", str(program), "."], HERE / "go")
    return program


def _redisson(folder: Path) -> Path:
    maven, java = _tool("mvn"), _tool("java")
    source = folder / "source"
    shutil.copytree(HERE / "java", source)
    jars = source / "target" / "jars"
    goal = "dependency:copy-dependencies"
    _run([maven, "-q", "-B", "compile", goal, f"-DoutputDirectory={jars}"], source)
    path = f"{source / 'target' / 'classes'}:{jars}/*"
    return _script(folder, [java, *MEMORY_OF_JAVA, "-cp", path, "Peer"])


def _redishilok(folder: Path) -> Path:
    packages = folder / "packages"
    uv = shutil.which("uv")
    pip = [sys.executable, "-m", "pip"] if uv is None else [uv, "pip"]
    target = ["--target", str(packages)]
    if uv is not None:
        target += ["--python", sys.executable]
    _run([*pip, "install", "-q", *target, *REDISHILOK_PACKAGES], folder)
    worker = [sys.executable, "-m", "benchmarks.harness.worker"]
    return _script(folder, ["env", f"PYTHONPATH={packages}", *worker])


_BUILDERS: dict[str, Callable[[Path], Path]] = {
    RUEIDIS: _rueidis,
    REDISSON: _redisson,
    REDISHILOK: _redishilok,
}
FOREIGN = frozenset(_BUILDERS)


def foreign_versions() -> dict[str, str]:
    """Return the versions of the foreign peers, as they are written down here."""
    go = (HERE / "go" / "go.mod").read_text(encoding="utf-8")
    java = (HERE / "java" / "pom.xml").read_text(encoding="utf-8")
    return {
        RUEIDIS: _found(r"redis/rueidis v(\S+)", go),
        REDISSON: _found(r"<artifactId>redisson</artifactId>\s*<version>(.+?)<", java),
        REDISHILOK: REDISHILOK_PACKAGES[0].partition("==")[2],
    }


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None
    return found[1]


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        message = f"there is no {name} on PATH"
        raise Missing(message)
    return found


def _script(folder: Path, command: list[str]) -> Path:
    """Return a script that becomes the command, with the arguments of the script."""
    script = folder / "worker"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def _run(command: list[str], folder: Path) -> None:
    name = Path(command[0]).name
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        message = f"{name} took longer than {BUILD_TIMEOUT:.0f} s"
        raise Missing(message) from None
    if ran.returncode != 0:
        lines = (ran.stdout + ran.stderr).strip().splitlines() or ["no output"]
        message = f"{name} failed ({lines[-1]})"
        raise Missing(message)
