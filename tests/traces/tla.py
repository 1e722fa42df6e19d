"""Writes steps of the model as a module of TLA+, and has TLC check it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.traces.abstraction import ModelStep

SPEC = Path(__file__).parents[2] / "spec"
MODULE = "RecordedHistories"
TIMEOUT = 300


def models() -> Any:  # noqa: ANN401 - a program beside the package
    """Return `spec/run.py`, with the table of its configurations."""
    name = "spec_run"
    if name not in sys.modules:
        found = util.spec_from_file_location(name, SPEC / "run.py")
        assert found is not None
        assert found.loader is not None
        module = util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What TLC says of some histories.

    ``reached``: for each, how many of its steps the model has. ``violated``: the
    invariant that does not hold; empty: all hold. ``output``: TLC's own.
    """

    reached: tuple[int, ...]
    violated: str
    output: str


def validate(histories: Sequence[Sequence[ModelStep]]) -> Verdict:
    """Have TLC decide which of the histories, none empty, ``LockRec`` has."""
    runner = models()
    runner.prepare()
    with TemporaryDirectory(prefix="trace.") as name:
        Path(name, f"{MODULE}.tla").write_text(module_of(histories), "utf-8")
        outcome = runner.check_module(Path(name), MODULE, "TraceRec", TIMEOUT)
    if outcome.verdict in {"error", "timeout"}:
        raise RuntimeError(f"TLC came to no verdict:\n{outcome.output}")
    left = [len(history) for history in histories]
    for which, commands in re.findall(r'<<"left", (\d+), (\d+)>>', outcome.output):
        number = int(which) - 1
        left[number] = min(left[number], int(commands))
    reached = tuple(
        len(history) - commands
        for history, commands in zip(histories, left, strict=True)
    )
    violated = "" if outcome.verdict == runner.PASS else outcome.verdict
    return Verdict(reached, violated, outcome.output)


def module_of(histories: Sequence[Sequence[ModelStep]]) -> str:
    """Return the module that has the histories as ``Recorded``, and their clients."""
    steps = [step for history in histories for step in history]
    clients = {request.g for step in steps for request in step.requests}
    clients |= {entry.g for step in steps for entry in step.seen.queue}
    lines = ",\n  ".join(tla(tuple(history)) for history in histories)
    return (
        f"---- MODULE {MODULE} ----\n"
        "EXTENDS TraceRec\n"
        f"Known == {tla(frozenset(clients))}\n"
        f"Recorded == <<\n  {lines}\n>>\n"
        "====\n"
    )


def tla(value: object) -> str:
    """Return a value as an expression of TLA+."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"<<{_listed(value)}>>"
    if isinstance(value, frozenset):
        return f"{{{_listed(sorted(value, key=tla))}}}"
    if is_dataclass(value):
        parts = (f"{f.name} |-> {tla(getattr(value, f.name))}" for f in fields(value))
        return f"[{', '.join(parts)}]"
    raise TypeError(f"not a value of the model: {value!r}")


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(tla, values))
