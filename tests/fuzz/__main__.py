"""Runs the targets under atheris: ``python -m tests.fuzz SECONDS [TARGET …]``.

Each target has a process of its own, which begins with the files of its corpus. An
input that breaks a promise is kept in ``corpus/TARGET`` and shown.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
MAX_BYTES = 4096
TIME_LIMIT = 20
"""Seconds for one input: a reader that takes longer hangs."""
MEMORY_LIMIT = 2048
"""Megabytes for one process."""
FIGURES = {
    "executions": re.compile(r"stat::number_of_executed_units: +(\d+)"),
    "a second": re.compile(r"stat::average_exec_per_sec: +(\d+)"),
    "features": re.compile(r"ft: (\d+)"),
    "blocks": re.compile(r"cov: (\d+)"),
    "inputs kept": re.compile(r"corp: (\d+)/"),
    "peak MB": re.compile(r"stat::peak_rss_mb: +(\d+)"),
}


def run_all(seconds: int, names: list[str]) -> int:
    """Run the targets one after the other; return the exit code."""
    print(f"| target | {' | '.join(FIGURES)} | result |", flush=True)
    print("| --- " * (len(FIGURES) + 2) + "|", flush=True)
    return max(run(name, seconds) for name in names)


def run(name: str, seconds: int) -> int:
    """Run one target in a process of its own; print its figures as a table row."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found")
        found.mkdir()
        command = [
            *(sys.executable, "-m", "tests.fuzz", "--one", name, str(found)),
            *(str(CORPUS / name), f"-max_total_time={seconds}"),
            *(f"-max_len={MAX_BYTES}", f"-timeout={TIME_LIMIT}"),
            *(f"-rss_limit_mb={MEMORY_LIMIT}", "-print_final_stats=1"),
            f"-artifact_prefix={folder}/",
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        output = ended.stdout + ended.stderr
        broken = [path for path in Path(folder).iterdir() if path.is_file()]
        for path in broken:
            data = path.read_bytes()
            kept = f"{path.name.partition('-')[0]}-{sha256(data).hexdigest()[:12]}"
            (CORPUS / name / kept).write_bytes(data)
            print(output[-4000:], file=sys.stderr)
    figures = [(pattern.findall(output) or ["?"])[-1] for pattern in FIGURES.values()]
    result = f"{len(broken)} broken" if broken or ended.returncode else "sound"
    print(f"| {name} | {' | '.join(figures)} | {result} |", flush=True)
    return ended.returncode


def run_one(name: str, arguments: list[str]) -> None:
    """Run one target in this process; does not return."""
    import atheris  # noqa: PLC0415 - a group of its own has it

    with atheris.instrument_imports(include=["aiorwlock_remote"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - after the hooks

    logging.disable(logging.CRITICAL)
    target = TARGETS[name]

    def call(data: bytes) -> None:
        target(data)

    atheris.Setup([sys.argv[0], *arguments], call)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        run_one(arguments[1], arguments[2:])
    seconds, *names = arguments or ["60"]
    known = sorted(path.name for path in CORPUS.iterdir() if path.is_dir())
    return run_all(int(seconds), names or known)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
