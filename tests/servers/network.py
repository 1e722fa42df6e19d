"""Networks of our own: members in namespaces of theirs, on cables that are pulled.

Linux, and root, who may make namespaces. Nothing outside of them is changed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.servers.process import needed

CLONE_NEWNET = 0x40000000
BRIDGE = "locks0"
NET = "10.77.0"


def leave_the_machine() -> None:
    """Let this process, and all that it starts from now on, see an empty network.

    Called before any thread is started: a thread that runs would stay where it is.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare: are you root?")
    _ip("link", "set", "lo", "up")
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{NET}.1/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")


class Socket:
    """A namespace with one cable to the bridge; ``before``: starts a command in it."""

    def __init__(self, number: int) -> None:
        """``number``: the last one of its address; from 2 to 254."""
        self.ip: str = f"{NET}.{number}"
        self._cable = f"cable{number}"
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        where = f"--net=/proc/{self._keeper.pid}/ns/net"
        self.before: Sequence[str] = ("nsenter", where)
        far = f"far{number}"
        peer = ("peer", "name", far, "netns", str(self._keeper.pid))
        _ip("link", "add", self._cable, "type", "veth", *peer)
        _ip("link", "set", self._cable, "master", BRIDGE, "up")
        _run(*self.before, "ip", "link", "set", "lo", "up")
        _run(*self.before, "ip", "addr", "add", f"{self.ip}/24", "dev", far)
        _run(*self.before, "ip", "link", "set", far, "up")

    @contextmanager
    def pulled(self) -> Iterator[None]:
        """Nothing comes and nothing goes; no end hears of it."""
        _ip("link", "set", self._cable, "down")
        try:
            yield
        finally:
            _ip("link", "set", self._cable, "up")

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    needed("ip", "iproute2")
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    subprocess.run(command, check=True, env=environment)
