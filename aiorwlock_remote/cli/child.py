"""The command that ``rwlock run`` runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

_PYTHON_IGNORES = tuple(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)
)

_SHELL = "/bin/sh"


@final
class Child:
    """A process in our own process group, with our files.

    As under flock(1) and `timeout --foreground`, not in a group of its own: so it may
    read from the terminal, Ctrl-Z stops both of us, and Ctrl-C reaches it exactly once,
    from the terminal. The price: only the command itself is sent signals, not what it
    starts in turn.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        on_end: Callable[[], None],
    ) -> None:
        """Start it with the signal mask ``mask``; ``on_end`` is called in the loop.

        Raises:
            OSError: it cannot be started.
        """
        self._loop, self._on_end = asyncio.get_running_loop(), on_end
        self.code: int | None = None
        # Not subprocess: a child inherits the mask of the thread that starts it, and
        # only posix_spawn sets another without running Python code after the fork.
        # A SIGCHLD that came in ignored would reap it before we can.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._pid = _spawn(command, environment, mask)
        threading.Thread(target=self._reap, name="rwlock child", daemon=True).start()

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._loop.call_soon_threadsafe(self._ended, os.waitstatus_to_exitcode(status))

    def _ended(self, code: int) -> None:
        self.code = code
        self._on_end()


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> int:
    """Start the command as execvp would; return its process id.

    Raises:
        OSError: the command cannot be started.
    """

    def spawn(file: str, arguments: list[str]) -> int:
        return os.posix_spawnp(
            file, arguments, environment, setsigmask=mask, setsigdef=_PYTHON_IGNORES
        )

    try:
        return spawn(command[0], list(command))
    except OSError as exc:
        # A script without "#!" runs under a shell, and under flock(1), because execvp
        # hands what the kernel cannot execute to /bin/sh; posix_spawnp does not
        # (test_a_script_that_names_no_interpreter).
        if exc.errno != errno.ENOEXEC:
            raise
        script = shutil.which(command[0]) or command[0]
        return spawn(_SHELL, [_SHELL, script, *command[1:]])
