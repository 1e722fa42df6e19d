"""pytest plugin: the tests that ``differences.txt`` lists for ``THEIRS`` have to fail.

A list that is longer than it need be would hide that a test passes by now.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("differences.txt")
FAILED: set[str] = set()
"""The names of the listed tests that failed, with one of their parameters at least."""


def differences(library: str) -> Iterator[tuple[str, bool]]:
    """Yield the tests of a library that the list has, and whether each always fails."""
    chosen = always = False
    for line in LIST.read_text("utf-8").splitlines():
        if line.startswith("["):
            chosen = line.startswith(f"[{library}] ")
            always = not line.startswith(f"[{library}] At times: ")
        elif chosen and line and not line.startswith("#"):
            yield line, always


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = {name for name, _ in differences(os.environ["THEIRS"])}
    if unknown := listed - {_name(item.nodeid) for item in items}:
        raise pytest.UsageError(f"no such tests: {', '.join(sorted(unknown))}")
    for item in items:
        if _name(item.nodeid) in listed:
            item.add_marker(pytest.mark.xfail(reason="differences.txt"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if hasattr(report, "wasxfail") and report.skipped:
        FAILED.add(_name(report.nodeid))


def pytest_sessionfinish(session: pytest.Session) -> None:
    fails = {name for name, always in differences(os.environ["THEIRS"]) if always}
    if passed := fails - FAILED:
        writer = session.config.get_terminal_writer()
        writer.line("\nlisted, and passed:\n" + "\n".join(sorted(passed)))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _name(node: str) -> str:
    return node.partition("[")[0]
