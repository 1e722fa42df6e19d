"""What a holder reads when somebody has queued up behind it."""

from __future__ import annotations

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.postgresql.listener import ArrivalReader
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas.table_cas import VersionMark
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.errors import BackendUnavailable

ORDER = resource("order", 1)
OURS = MutexRecord("ours,1")


def state(version: str, seat: MutexRecord | None = OURS) -> StoredState:
    return StoredState(Doorman(), seat, VersionMark(version))


class Holder:
    """Has a state, and reads on demand."""

    def __init__(self, known: StoredState | None) -> None:
        self.known = known
        self.reads: list[Pending[StoredState]] = []
        self.newcomers = ArrivalReader(self.read, lambda _: self.known, self.saw)

    def read(self, _: Resource) -> Pending[StoredState]:
        self.reads.append(Pending())
        return self.reads[-1]

    def saw(self, _: Resource, seen: StoredState) -> None:
        self.known = seen


def test_a_holder_knows_the_version_after_the_read() -> None:
    holder = Holder(state("a"))
    holder.newcomers.arrived(ORDER, "b")
    holder.reads[0].set_result(state("b"))
    assert holder.known == state("b")
    holder.newcomers.arrived(ORDER, "b")
    assert len(holder.reads) == 1


def test_many_that_come_at_once_are_two_reads() -> None:
    """The second, as what the first one finds may be what was there before the last."""
    holder = Holder(state("a"))
    for version in "bcd":
        holder.newcomers.arrived(ORDER, version)
    holder.reads[0].set_result(state("c"))
    assert len(holder.reads) == 2
    holder.reads[1].set_result(state("d"))
    assert holder.known == state("d")
    assert len(holder.reads) == 2


def test_arrivals_during_a_read_cost_one_more_read() -> None:
    holder = Holder(state("a"))
    for version in "bc":
        holder.newcomers.arrived(ORDER, version)
    holder.reads[0].set_result(state("c"))
    assert len(holder.reads) == 1


def test_a_client_without_a_grant_reads_no_arrivals() -> None:
    """It has left meanwhile, or was never there: a message is but a hint."""
    for known in (None, state("a", seat=None)):
        holder = Holder(known)
        holder.newcomers.arrived(ORDER, "b")
        assert holder.reads == []


def test_a_read_that_fails_is_the_releases_business() -> None:
    holder = Holder(state("a"))
    holder.newcomers.arrived(ORDER, "b")
    holder.newcomers.arrived(ORDER, "c")
    holder.reads[0].set_exception(BackendUnavailable(what="away"))
    assert holder.known == state("a")
    assert len(holder.reads) == 1
    holder.newcomers.arrived(ORDER, "d")
    assert len(holder.reads) == 2
