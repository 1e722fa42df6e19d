"""The fence in an HTTP request: the header ``Lock-Fence``, written and read."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Protocol

from aiorwlock_remote.errors import BadFence, ConfigurationError
from aiorwlock_remote.fencing.checks import check_fence

HEADER = "Lock-Fence"

MAX_SECONDS_AHEAD = 86_400

_DIGITS = re.compile(r"[0-9]{1,16}")


class HasFence(Protocol):
    """Any object with the fence of a grant, such as ``Held``."""

    @property
    def fence(self) -> int: ...


def fence_header(held: HasFence) -> dict[str, str]:
    """Return ``{"Lock-Fence": …}``, to send with a request made under the grant."""
    return {HEADER: str(held.fence)}


def read_fence(values: Sequence[str]) -> int:
    """Return the fence of a request, given the values of its ``Lock-Fence`` headers.

    The sender of the request chooses the number: accept it only from senders that you
    trust with the resource, and let the resource compare it with the highest one seen.

    Raises:
        BadFence: There is no header or more than one, its value is not a number, or it
            is more than a day ahead of the local clock.
        ConfigurationError: ``values`` is not a list of header values.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigurationError(
            what=f"read_fence needs a list of all {HEADER} headers, "
            f"not {type(values).__name__}"
        )
    if len(values) != 1:
        count = "no" if not values else "more than one"
        raise BadFence(what=f"the request has {count} {HEADER} header")
    text: object = values[0]
    if not isinstance(text, str) or _DIGITS.fullmatch(text) is None:
        raise BadFence(what=f"the {HEADER} header is not a number")
    fence = check_fence(int(text))
    # A fence is a time in microseconds or little more. If a fence of the far future
    # were believed, the resource would refuse every later holder
    # (test_of_the_day_after_tomorrow).
    if fence > (time.time() + MAX_SECONDS_AHEAD) * 1e6:
        raise BadFence(what=f"the {HEADER} header is more than a day in the future")
    return fence
