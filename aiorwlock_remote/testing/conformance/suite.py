"""All conformance cases together, for the test module of one backend.

::

    class MyHarness(Harness):
        capabilities = Capability.MANY_PROCESSES | Capability.NOTIFIES

        def fresh(self, folder):
            return StoreLocation(f"mine://localhost/{uuid4().hex}")


    class TestMine(ConformanceSuite):
        harness = MyHarness()
"""

from __future__ import annotations

from typing import ClassVar

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.cases.admin import AdminCases
from aiorwlock_remote.testing.conformance.cases.bad_input import BadInputCases
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import (
    CancellationCases,
    NativeCancellationCases,
)
from aiorwlock_remote.testing.conformance.cases.close import CloseCases
from aiorwlock_remote.testing.conformance.cases.declared import DeclaredCases
from aiorwlock_remote.testing.conformance.cases.failing import FailingCases
from aiorwlock_remote.testing.conformance.cases.fairness import FairnessCases
from aiorwlock_remote.testing.conformance.cases.fence import FenceCases
from aiorwlock_remote.testing.conformance.cases.lease import (
    BlockedLoopCases,
    LeaseCases,
    LossCases,
)
from aiorwlock_remote.testing.conformance.cases.locks import MutexCases, RWLockCases
from aiorwlock_remote.testing.conformance.cases.moves import MovesCases, PassingCases
from aiorwlock_remote.testing.conformance.cases.multi import MultiCases
from aiorwlock_remote.testing.conformance.cases.names import OneNameOneLockCases
from aiorwlock_remote.testing.conformance.cases.process import ProcessCases
from aiorwlock_remote.testing.conformance.cases.published import (
    PublishedCallsCases,
    SeatCases,
)
from aiorwlock_remote.testing.conformance.cases.waiting import WaitingCases, WakingCases
from aiorwlock_remote.testing.conformance.harness import Harness

ALL_CASES: tuple[type[Cases], ...] = (
    DeclaredCases,
    MutexCases,
    RWLockCases,
    OneNameOneLockCases,
    FenceCases,
    LeaseCases,
    BlockedLoopCases,
    LossCases,
    WaitingCases,
    WakingCases,
    FairnessCases,
    CancellationCases,
    NativeCancellationCases,
    FailingCases,
    MovesCases,
    PassingCases,
    MultiCases,
    PublishedCallsCases,
    SeatCases,
    AdminCases,
    BadInputCases,
    CloseCases,
    ProcessCases,
)
"""All case classes; those that a backend's capabilities allow are run."""


class ConformanceSuite:
    """Base of a backend's test class: a ``Test…`` subclass that sets ``harness``.

    The subclass gets one inner class for each case class: ``TestMine::TestMutex::…``.
    Cases that do not apply to the harness are not collected; none is skipped.
    """

    harness: ClassVar[Harness]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        harness = cls.harness
        if Capability.PUBLISHED_LAYOUT in harness.capabilities:
            # Without a foreigner the cases of the layout would be left out unnoticed
            # (test_a_published_layout_is_proved_by_a_foreigner).
            assert harness.has_foreigner, "a published layout needs a foreigner"
        # Inner classes, made here: pytest collects them with the backend's name, and a
        # case class added later reaches every backend.
        for cases in ALL_CASES:
            if cases.applies_to(harness):
                name = "Test" + cases.__name__.removesuffix("Cases")
                inside = {
                    "harness": harness,
                    "__doc__": cases.__doc__,
                    "__module__": cls.__module__,
                    "__qualname__": f"{cls.__qualname__}.{name}",
                }
                setattr(cls, name, type(name, (cases,), inside))
