"""A link in front of a store: what it lets through is what the store said."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from aiorwlock_remote.core.commands import NotHeld, Release, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.errors import BackendUnavailable, BadRecord
from aiorwlock_remote.ports import Pending, Renewal, RenewerBase
from aiorwlock_remote.testing.faults import Fate, FaultyLink, FaultyRenewer
from aiorwlock_remote.testing.memory import FaultyMemory

NAME = resource("order", 42)
COMMAND = Release("x")


def answered(error: Exception | None = None) -> Pending[Reply]:
    pending: Pending[Reply] = Pending()
    if error is None:
        pending.set_result(NotHeld("expired"))
    else:
        pending.set_exception(error)
    return pending


@pytest.mark.parametrize(
    ("fate", "done", "error"),
    [
        (Fate.PASS, 1, None),
        (Fate.REFUSE, 0, BackendUnavailable),
        (Fate.LOSE, 1, BackendUnavailable),
    ],
)
def test_the_fate_of_a_command(
    fate: Fate, done: int, error: type[Exception] | None
) -> None:
    carried: list[int] = []

    def do() -> Pending[Reply]:
        carried.append(1)
        return answered()

    link = FaultyLink(fate=lambda _: fate)
    outcome = link.carry(do, COMMAND)
    assert outcome.done()
    assert len(carried) == done
    assert type(outcome.error) is (error or type(None))
    assert link.sent == [COMMAND]


def test_an_error_of_the_store_is_its_own() -> None:
    error = BadRecord(what="nonsense")
    assert FaultyLink().carry(lambda: answered(error), COMMAND).error is error


def test_an_answer_that_comes_later_is_passed_on_then() -> None:
    inner: Pending[Reply] = Pending()
    outcome = FaultyLink().carry(lambda: inner, COMMAND)
    assert not outcome.done()
    inner.set_result(NotHeld("expired"))
    assert outcome.result() == NotHeld("expired")


def test_answers_are_held_back_in_order() -> None:
    link, order = FaultyLink(hold_back=True), list[str]()
    for name in ("first", "second"):
        outcome = link.carry(answered, COMMAND)
        outcome.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    assert order == []
    link.let_through()
    assert order == ["first", "second"]
    assert link.carry(answered, COMMAND).done()


class Lanes(RenewerBase):
    """Renews over a connection for each type."""

    def __init__(self) -> None:
        self.renewed: list[Resource] = []

    def lane(self, resource: Resource) -> str:
        return resource.type

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        del timeout
        self.renewed += [item.resource for item in batch]
        return [NotHeld("expired")] * len(batch)


def test_renewals() -> None:
    link, inner = FaultyLink(), Lanes()
    renewer = FaultyRenewer(inner, link)
    batch = [Renewal(NAME, "x", 1)]
    assert renewer.lane(NAME) == "order"
    link.lane = lambda resource: resource.id
    assert renewer.lane(NAME) == "42"
    assert renewer.renew(batch, 1) == [NotHeld("expired")]
    for name in ("down", "renewals_fail"):
        setattr(link, name, True)
        with pytest.raises(BackendUnavailable):
            renewer.renew(batch, 1)
        setattr(link, name, False)
    assert inner.renewed == [NAME]


@pytest.mark.anyio
async def test_reads_are_passed_on() -> None:
    async with FaultyMemory().connect() as locks, locks.mutex("order", 42):
        with anyio.fail_after(10):
            assert [seen.resource_id async for seen in locks.list()] == ["42"]
