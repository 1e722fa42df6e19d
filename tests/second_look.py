"""``second_look``: marks the few tests that may fail for a machine that stands still.

They run processes against the clock. All other tests are run once, everywhere.
"""

from __future__ import annotations

import pytest

MOST = 10
"""So many tests may have the mark (``test_project.py``)."""
GRAVE = r"(?s)^Assert.*([Vv]iolation|[Oo]verlap|[Ee]xclusion|[Ff]ence)"
"""Failures that are never repeated: two holders overlapped, or a fence went back."""


def second_look(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that is run again once if it fails.

    Its first failure is shown, and the summary names it. ``why``: what of the machine
    the test cannot be made independent of.
    """
    assert why
    return pytest.mark.flaky(reruns=1, reruns_delay=5, rerun_except=GRAVE)
