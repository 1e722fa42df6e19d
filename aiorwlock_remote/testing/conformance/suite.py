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

from types import ModuleType
from typing import ClassVar

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.cases import (
    admin,
    cancellation,
    close,
    crowd,
    declared,
    failing,
    fairness,
    fence,
    histories,
    lease,
    locks,
    moves,
    names,
    permits,
    process,
    published,
    pushed,
    waiting,
)
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import Harness

_MODULES: tuple[ModuleType, ...] = (
    *(declared, locks, names, fence, lease, waiting, fairness, cancellation, failing),
    *(moves, permits, published, admin, close, process, pushed),
    *(histories, crowd),
)
ALL_CASES: tuple[type[Cases], ...] = tuple(
    defined
    for module in _MODULES
    for defined in vars(module).values()
    if isinstance(defined, type) and issubclass(defined, Cases) and defined.is_whole()
)
"""All case classes; those that a backend's capabilities allow are run."""


class ConformanceSuite:
    """Base of a backend's test class: a ``Test…`` subclass that sets ``harness``.

    The subclass gets one inner class for each case class: ``TestMine::TestMutex::…``.
    Cases that do not apply to the harness are not collected; none is skipped.
    ``cases``: those to run; what no store can break is not among them.
    """

    harness: ClassVar[Harness]
    cases: ClassVar[tuple[type[Cases], ...]] = ALL_CASES

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        harness = cls.harness
        if Capability.PUBLISHED_LAYOUT in harness.capabilities:
            # Without a foreigner the cases of the layout would be left out unnoticed
            # (test_a_published_layout_is_proved_by_a_foreigner).
            assert harness.has_foreigner, "a published layout needs a foreigner"
        # Inner classes, made here: pytest collects them with the backend's name, and a
        # case class added later reaches every backend.
        for cases in cls.cases:
            if cases.applies_to(harness):
                name = "Test" + cases.__name__.removesuffix("Cases")
                inside = {
                    "harness": harness,
                    "__doc__": cases.__doc__,
                    "__module__": cls.__module__,
                    "__qualname__": f"{cls.__qualname__}.{name}",
                }
                setattr(cls, name, type(name, (cases,), inside))
