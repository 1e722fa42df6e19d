"""What all tests share: the event loops they run on."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings

# A shell starts background jobs with these ignored, and the processes that tests start
# would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

# A shared machine is slow at times: how long one example took proves nothing.
settings.register_profile("project", deadline=None, print_blob=True)
settings.load_profile("project")

LOOPS = (
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
)


# Scope module as anyio's own, so that wider async fixtures can build on it.
@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loops under every test marked anyio; one not installed fails the test."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend
