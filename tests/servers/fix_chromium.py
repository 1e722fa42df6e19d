"""Fixtures: one browser for all tests of a worker, a new tab for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.chromium import Chromium, Page


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Page]:
    """A tab; at the end no script, no policy and no load had an error."""
    with chromium.page() as page:
        page.size(1280, 860)
        yield page
        assert page.complaints() == []
