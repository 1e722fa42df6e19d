"""What cannot be imported is named, with what to do about it."""

from __future__ import annotations

import pytest

from aiorwlock_remote import registry
from aiorwlock_remote.errors import ConfigurationError


def registered(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(registry, "_registered", lambda: {"novel": {target}})


def test_a_driver_of_ours_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "mysql", "no_such_driver.store:open_store")
    with pytest.raises(ConfigurationError) as caught:
        registry.find("mysql")
    assert "mysql:// needs no_such_driver, which is not installed" in str(caught.value)
    assert caught.value.hint == "pip install 'aiorwlock-remote[mysql]'"


def test_a_package_of_others_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No extra of ours would help."""
    registered(monkeypatch, "no_such_package:open_store")
    with pytest.raises(ConfigurationError) as caught:
        registry.find("novel")
    assert str(caught.value) == "novel:// needs no_such_package, which is not installed"


@pytest.mark.parametrize("target", ["json:open_store", "tests.not_whole:open_store"])
def test_an_entry_point_that_is_no_backend(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    registered(monkeypatch, target)
    with pytest.raises(ConfigurationError, match="cannot be imported: ") as caught:
        registry.find("novel")
    assert "not installed" not in str(caught.value)
