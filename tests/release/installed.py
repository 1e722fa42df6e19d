"""Installs a wheel with each extra in an empty environment, and uses it there.

`python -m tests.release.installed WHEEL FOLDER` makes the environments in FOLDER. The
one with all extras is for the SBOM, too.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "aiorwlock_remote"
MODULES = {
    "": ("sync", "testing.memory", "backends.sqlite.store", "backends.files.store"),
    "aiohttp": ("integrations.aiohttp", "integrations.board"),
    "board": ("cli.board", "integrations.board.asgi"),
    "cassandra": ("backends.cassandra", "backends.cassandra.store"),
    "cli": ("cli.main", "cli.exporter"),
    "django": ("integrations.django",),
    "etcd": ("backends.etcd.store",),
    "fastapi": ("integrations.fastapi",),
    "flask": ("integrations.flask",),
    "litestar": ("integrations.litestar",),
    "mariadb": ("backends.mariadb.store",),
    "mysql": ("backends.mysql", "backends.mariadb.store"),
    "oracle": ("backends.oracle", "backends.oracle.store"),
    "otel": ("integrations.otel",),
    "postgresql": ("backends.postgresql", "backends.postgresql.store"),
    "prometheus": ("integrations.prometheus",),
    "redis": ("backends.redis", "backends.redis.store", "compat.redis_py.asyncio"),
    "sqlalchemy": ("integrations.sqlalchemy",),
    "starlette": ("integrations.starlette",),
}
"""The modules that have to be importable with one extra alone."""
USE = f"""
import asyncio, importlib, sys, tempfile
import {PACKAGE}
for name in sys.argv[1:]:
    importlib.import_module("{PACKAGE}." + name)

async def main():
    folder = tempfile.mkdtemp()
    for url in "memory://", f"sqlite:///{{folder}}/locks.db", f"file://{{folder}}/locks?create=yes":
        async with {PACKAGE}.connect(url) as locks:
            async with locks.mutex("order", 42) as held:
                assert await locks.mutex("order", 42).locked()
                held.check()

asyncio.run(main())
print({PACKAGE}.__version__, {PACKAGE}.__file__)
"""


def run(*command: str | Path) -> str:
    """Run a command outside of the working copy; return what it prints."""
    done = subprocess.run(command, cwd="/", check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """Install a wheel in a new environment; return its interpreter."""
    path = folder / (extra or "bare")
    run("uv", "venv", "-q", "--clear", "--python", sys.executable, path)
    python = path / "bin" / "python"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pinned = ROOT / "constraints.txt"
    run("uv", "pip", "install", "-q", "--python", python, "-c", pinned, wanted)
    run("uv", "pip", "check", "-q", "--python", python)
    return python


def main(arguments: Sequence[str]) -> int:
    """Install and use the wheel with each extra; return the exit code."""
    wheel, folder = (Path(argument).resolve() for argument in arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in ("", *project["optional-dependencies"]):
        python = environment(folder, wheel, extra)
        chosen = [extra] if extra in MODULES else list(MODULES)
        modules = [module for name in chosen for module in MODULES[name]]
        # -I keeps the working copy off the path: what is imported is the wheel.
        shown = run(python, "-I", "-c", USE, *modules).split()
        if not Path(shown[1]).is_relative_to(folder):
            raise SystemExit(f"imported from {shown[1]}, not from {folder}")
        output = run(python.with_name("rwlock"), "demo") if extra == "cli" else ""
        print(f"{extra or 'no extra'}: {shown[0]}, {len(modules)} modules")
        print(output, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
