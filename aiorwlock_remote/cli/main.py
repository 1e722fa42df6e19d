"""The entry point ``rwlock``: runs a command and turns every error into one line."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiorwlock_remote.cli.exit_codes import REFUSED, SIGNAL, USAGE
from aiorwlock_remote.cli.streams import discard_stdout, null_stream
from aiorwlock_remote.core.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_REQUIRED = ("click", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rwlock`` with ``argv`` (default: ``sys.argv``); return the exit code."""
    missing = [name for name in _REQUIRED if find_spec(name) is None]
    if missing:
        print(
            f"rwlock: {' and '.join(missing)} not installed; "
            "pip install 'aiorwlock-remote[cli]'",
            file=sys.stderr,
        )
        return USAGE
    _prepare_streams()
    # The library's log events are meant for programs. Without a handler Python would
    # print warnings among them to stderr, where commands print one line of their own.
    log, bad_records = logging.getLogger("aiorwlock_remote"), _BadRecords()
    log.addHandler(bad_records)
    try:
        return _flushed(_run(list(sys.argv[1:] if argv is None else argv)))
    except KeyboardInterrupt:  # Ctrl-C before a command handles signals itself
        return SIGNAL + 2
    except BrokenPipeError:  # `rwlock ls | head`
        discard_stdout()
        return 0
    finally:
        log.removeHandler(bad_records)


class _BadRecords(logging.Handler):
    """Prints which records cannot be read, and so are in no list: each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.msg.startswith("bad_record "):
            return
        fields = vars(record)
        name = fields.get("resource") or fields.get("file")
        text = plain(f"rwlock: cannot be read: {name}: {fields['error']}")
        if text not in self._printed:
            self._printed.add(text)
            print(text, file=sys.stderr)


def _flushed(code: int) -> int:
    """Write what stdout has buffered; return the exit code, of a failure if that fails.

    Without this, what was printed to a full disk is found out as late as at exit, where
    Python prints a traceback and ends with 120 (test_a_full_disk_is_an_error).
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        discard_stdout()
        if code == 0:  # else a line on stderr has said what is wrong
            print(f"rwlock: stdout: {exc.strerror}", file=sys.stderr)
            return REFUSED
    return code


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        # A process that is started with a closed stream (`>&-`) has None for it.
        if getattr(sys, name) is None:
            setattr(sys, name, null_stream())
    # Names of resources are written by other programs. One that the terminal's encoding
    # lacks must be shown escaped, not as a traceback
    # (test_a_name_that_the_terminal_has_no_letters_for).
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
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
    except Exception as exc:  # noqa: BLE001 - report() raises bugs again
        return report(exc)
    return code if isinstance(code, int) else 0
