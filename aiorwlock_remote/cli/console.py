"""Where rich writes to. Imported only by commands that draw: it takes its time."""

from __future__ import annotations

from rich.console import Console


class RichConsole(Console):
    """stdout."""

    def on_broken_pipe(self) -> None:
        """Leave it to ``main``; rich would exit, from within a task group."""
        raise BrokenPipeError
