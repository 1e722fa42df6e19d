"""The entry point ``rwlock``: runs a command, turns every error into one line."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiorwlock_remote.cli.exit_codes import SIGNAL, USAGE
from aiorwlock_remote.cli.streams import discard_stdout, nowhere

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = ("click", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rwlock``; its exit code."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"rwlock: {' and '.join(missing)} not installed; "
            "pip install 'aiorwlock-remote[cli]'",
            file=sys.stderr,
        )
        return USAGE
    _open_missing_streams()
    _write_anything()
    # What the library logs is meant for programs; commands tell it in their own words.
    logging.getLogger("aiorwlock_remote").addHandler(logging.NullHandler())
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:  # before there is a command that would end in order
        return SIGNAL + 2
    except BrokenPipeError:  # `rwlock ls | head`
        discard_stdout()
        return 0
    return code


def _open_missing_streams() -> None:
    """Started with stdout or stderr closed (`>&-`): what is written there is lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, nowhere())


def _write_anything() -> None:
    """What a terminal has no letters for is escaped: names are written by others."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # not what a program has put there
        reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    # Imported here: without the extra there is no click.
    from aiorwlock_remote.cli.group import rwlock  # noqa: PLC0415
    from aiorwlock_remote.cli.report import report  # noqa: PLC0415

    try:
        code: object = rwlock.main(
            arguments or ["--help"], prog_name="rwlock", standalone_mode=False
        )
    except SystemExit:
        # click itself meets the closed pipe of `rwlock ls | head -1`, and would end
        # the process with 1 in any mode (test_nobody_reads_what_it_prints).
        raise BrokenPipeError from None
    except Exception as exc:  # noqa: BLE001 - what is not ours is raised again
        return report(exc)
    return code if isinstance(code, int) else 0
