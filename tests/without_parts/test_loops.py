"""anyio whose scopes have a class that cannot be called."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.runtime import event_loop
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.without_parts.locking import differing, exclude_and_hand_over

pytestmark = pytest.mark.anyio


class Sealed:
    """The class of a scope of another anyio."""

    @classmethod
    def of_anyio(cls) -> Sealed:
        return object.__new__(cls)

    def __init__(self) -> None:
        raise TypeError("anyio makes its scopes itself")


async def test_scopes_are_made_the_public_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, asked = anyio.CancelScope, list[None]()

    class Public:
        """The first call is the one that asks for the class."""

        def __new__(cls) -> Any:  # noqa: ANN401 - as anyio's
            asked.append(None)
            return Sealed.of_anyio() if len(asked) == 1 else real()

    class OtherAnyio:
        CancelScope = Public

    monkeypatch.setattr(event_loop, "anyio", OtherAnyio)
    memory = FaultyMemory()
    async with connect(memory) as one, connect(memory) as other:
        await exclude_and_hand_over(one, other)
    assert differing(caplog) == ["type(CancelScope())"]
    assert len(asked) > 2
