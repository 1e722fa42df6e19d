"""Answers that no script of ours gives: an error, never a grant or another reply."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorwlock_remote.backends.redis.codec import decode
from aiorwlock_remote.backends.redis.connection.protocol import Raw
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Granted,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendError

CLAIM = Claim("ticket", 30_000_000)
ASK = Acquire((CLAIM,), Mode.WRITE, client_id="g", may_queue=True)
COMMANDS: list[Command] = [
    *(ASK, Release("ticket"), Release("ticket", None, (ASK,))),
    *(Renew((("ticket", 5),)), Withdraw("g", Mode.READ, ("ticket",))),
    *(Downgrade("old", CLAIM), Upgrade("old", CLAIM), Adopt("old", CLAIM)),
    ForceRelease("holder", 5),
]
NOTHING = st.none() | st.booleans() | st.floats() | st.text(max_size=3)
ITEMS = st.integers(-9, 9) | st.binary(max_size=5) | st.just(1_795_257_340_551_903)
ANSWERS = st.recursive(
    NOTHING | ITEMS, lambda inner: st.lists(inner, max_size=7), max_leaves=9
)


@given(st.sampled_from(COMMANDS), ANSWERS)
@example(ASK, b"foo")  # its first byte is 102
@example(ASK, [b"f", 5])
@example(ASK, [True, 5])
@example(ASK, [5.0, 6])
@example(ASK, [5, 6, 7])
@example(ASK, [0, 5, 0, 7])
@example(ASK, [0, 5, 0, 7, [b"another", 1, 2, b'ab,0,["",0,"",""]']])
@example(Release("ticket", None, (ASK,)), 1)
@example(Renew((("ticket", 5),)), [5, b""])
@example(Withdraw("g", Mode.READ, ("ticket",)), [b"another"])
@example(ForceRelease("holder", 5), True)
def test_any_answer(command: Command, answer: Raw) -> None:
    """Read by its shape, or refused."""
    try:
        reply = decode(command, answer)
    except BackendError:
        return
    if isinstance(reply, Granted):
        (grant,) = reply.grants
        assert grant.ticket == "ticket"
        assert type(grant.fence) is int
        assert type(answer) is list


@pytest.mark.parametrize("command", COMMANDS)
def test_a_text_is_no_answer(command: Command) -> None:
    with pytest.raises(BackendError, match="cannot be read"):
        decode(command, b"foo")
