"""The console for tables. Only commands that draw them import it: rich is slow."""

from __future__ import annotations

from rich.console import Console


class RichConsole(Console):
    """A console of rich that raises ``BrokenPipeError`` if stdout is closed."""

    def on_broken_pipe(self) -> None:
        # rich would exit the process here, from within a task group whose workers
        # have to be ended first (test_nobody_reads_what_it_prints).
        raise BrokenPipeError
