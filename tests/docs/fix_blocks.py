"""The fenced blocks of a Markdown file, and how they are run.

The blocks of a page continue each other, in one folder of their own: `python` with
`await` at the top, in one event loop; `sh` by bash, which stops at the first failure
and keeps what was exported; `sql` on the file `locks.db`.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import os
import re
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import clear_frames
from types import TracebackType
from typing import Any, Self

from sybil import Document, Example, Region, Sybil

from aiorwlock_remote import Closed, Locks

NO_RUN = re.compile(r"<!-- no-run: (?P<reason>\S.*?) -->\s*\Z")
SET_UP = "python3 -m venv .venv && "
"""README's two commands that make an environment: `.ci/run` covers one, test_project
both."""
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^`\n]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: from its fence's first character to its last."""

    start: int
    end: int
    line: int
    language: str
    text: str


def blocks(document: str) -> Iterator[Block]:
    """All of them; one that is not closed raises."""
    position, opened = 0, None
    body: list[str] = []
    for number, line in enumerate(document.splitlines(keepends=True), 1):
        found = FENCE.match(line.rstrip("\n"))
        if opened is None:
            if found is not None:
                indent, fence = found["indent"], found["fence"]
                language = found["language"].strip()
                opened = position + len(indent), number, fence, language, indent
                body = []
        elif found is not None and _closes(found, opened[2]):
            start, at, _, language, _ = opened
            end = position + len(line.rstrip("\n"))
            yield Block(start, end, at, language, "".join(body))
            opened = None
        else:
            body.append(line.removeprefix(opened[4]))
        position += len(line)
    assert opened is None, f"the block in line {opened[1]} is not closed"


def _closes(found: re.Match[str], fence: str) -> bool:
    return not found["language"].strip() and found["fence"].startswith(fence)


class Page:
    """Runs the blocks of one page, in order."""

    def __init__(self, folder: Path, servers: Mapping[str, str] | None = None) -> None:
        """``folder`` is where the page's files go: the current one, too.

        ``servers``: URLs as the pages write them → those of servers that are there.
        """
        self.folder = folder
        self.servers = dict(servers or {})
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.ran: list[str] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(Closed):
            self._runner.run(self._close())
        self._runner.close()
        if exc is not None:
            self._drop(traceback)

    def _drop(self, failed: TracebackType | None) -> None:
        """Else what a failed block left open fails the test that runs when it goes."""
        clear_frames(failed)
        self.namespace.clear()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()

    def parse(self, document: Document) -> Iterable[Region]:
        """For Sybil: every block that is to be run."""
        for found in blocks(document.text):
            block = replace(found, text=self._with_servers(found.text))
            before = document.text[: block.start]
            if NO_RUN.search(before) or SET_UP in block.text:
                continue
            if block.language in ("python", "sh", "sql"):
                yield Region(block.start, block.end, block, self.evaluate)

    def _with_servers(self, text: str) -> str:
        for written, there in self.servers.items():
            text = text.replace(written, there)
        return text

    def evaluate(self, example: Example) -> None:
        """For Sybil: run one block; an exception is its failure."""
        block: Block = example.parsed
        if block.language == "python":
            self._python(block, example.path)
        elif block.language == "sh":
            self._sh(block, example.path)
        else:
            with closing(sqlite3.connect(self.folder / "locks.db")) as db:
                db.executescript(block.text)
        self.ran.append(block.language)

    def _python(self, block: Block, path: str) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        text = "\n" * block.line + block.text  # so that a traceback names the line
        code = compile(text, path, "exec", flags, dont_inherit=True)
        result = eval(code, self.namespace)  # noqa: S307 - our own documents
        if inspect.iscoroutine(result):
            self._runner.run(result)

    def _sh(self, block: Block, page: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        exported = self.folder / ".exported"
        exported.touch()
        script = f"set +u; . {exported}; set -u\n{block.text}\nexport -p > {exported}"
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        said = f"{page}:{block.line}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}"
        assert ran.returncode == 0, said

    async def _close(self) -> None:
        for value in list(self.namespace.values()):
            if isinstance(value, Locks):
                await value.aclose()


def run(path: Path, page: Page) -> None:
    """All blocks of a page; Sybil's failure names the file and the line."""
    for example in Sybil(parsers=[page.parse]).parse(path).examples():
        example.evaluate()
