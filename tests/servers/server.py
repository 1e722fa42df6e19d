"""What all servers of the tests have in common: ports, signals, starts and ends."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.servers.process import ServerProcess, end_of, until

ATTEMPTS = 5


class Server(ABC):
    """One server on the loopback, in a folder of its own.

    A subclass says what its command is and when it answers; its constructor ends with
    ``begin``, so that it answers when the constructor returns.
    """

    program: ClassVar[str]
    """What messages call it."""
    starts_in: ClassVar[float] = 60.0
    """Seconds."""
    ends_in: ClassVar[float] = 60.0
    """Seconds, in order."""
    ends_by: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal that ends it in order, whoever is connected."""
    log_name: ClassVar[str] = "log"
    """Of its file of messages."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder
        self.before: Sequence[str] = ()
        """What goes before its command from the next start on; see ``clock``."""
        self._process: ServerProcess | None = None

    @abstractmethod
    def choose_ports(self) -> None:
        """Before the first start, and again if somebody else took one of them."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Starts it in the foreground; called, like all here, before every start."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves by now."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """The end of what it wrote."""
        return end_of(self.folder / self.log_name)

    def failure(self) -> RuntimeError:
        """It has ended before it answered."""
        return RuntimeError(f"{self.program} does not start: {self.log()}")

    def begin(self) -> None:
        """On free ports: one may be taken between choice and use."""
        for _ in range(ATTEMPTS):
            self.choose_ports()
            self.launch()
            if self._up():
                return
            if "address already in use" not in self.log().lower():
                break
        self.close()
        raise self.failure()

    def launch(self) -> None:
        """On the same ports and data; see ``wait``."""
        (self.folder / self.log_name).unlink(missing_ok=True)
        self._process = ServerProcess(*self.before, *self.command())

    def wait(self) -> None:
        """Until it answers."""
        if not self._up():
            raise self.failure()

    def kill(self) -> None:
        """At once, saving nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def stop(self) -> None:
        """In order: what is to be saved is saved."""
        process = self._process
        if process is not None:
            process.signal(self.ends_by)
            until(
                lambda: not process.alive(), f"{self.program} has ended", self.ends_in
            )
            self.kill()

    def start(self) -> None:
        """Again, on the same ports and data."""
        self.launch()
        self.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Its connections stay, new ones too (the kernel's doing); it says nothing."""
        assert self._process is not None
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None
        self._process.resume()

    def close(self) -> None:
        """Gone for good."""
        self.kill()

    def _up(self) -> bool:
        """True once it answers, False if it has ended before that."""
        process = self._process
        assert process is not None
        until(
            lambda: self.answers() or not process.alive(),
            f"{self.program} answers",
            self.starts_in,
        )
        if process.alive():
            return True
        self.kill()
        return False
