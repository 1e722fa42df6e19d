"""What a client may ask for, and what comes along with it and changes nothing here."""

from __future__ import annotations

from enum import IntEnum

from tests.servers.oracle.errors import unsupported
from tests.servers.oracle.fields import Reader


class Function(IntEnum):
    REEXECUTE = 4
    FETCH = 5
    LOGOFF = 9
    COMMIT = 14
    ROLLBACK = 15
    REEXECUTE_FETCH = 78
    EXECUTE = 94
    PING = 147
    SET_SCHEMA = 152
    SESSION_STATE = 176
    PIPELINE_BEGIN = 199
    PIPELINE_END = 200
    CLOSE_CURSORS = 105
    END_TO_END = 135


def skip(reader: Reader, function: int) -> None:
    """What comes along with a call and changes nothing here."""
    if function == Function.SESSION_STATE:
        reader.number()
    elif function == Function.SET_SCHEMA:
        reader.byte()
        reader.sized()
    elif function == Function.END_TO_END:
        _skip_names(reader)
    else:
        raise unsupported(f"piggyback {function}")


def _skip_names(reader: Reader) -> None:
    """Of module, action and the like: first what there is, then the texts."""
    reader.skip(2)
    reader.number()
    sizes: list[int] = []
    for _ in range(3):
        present = reader.byte()
        size = reader.number()
        sizes.append(size if present else 0)
    for _ in range(2):
        reader.byte()
        reader.number()
        reader.byte()
        reader.number()
        reader.byte()
        sizes.append(reader.number())
    for size in sizes:
        if size:
            reader.value()
