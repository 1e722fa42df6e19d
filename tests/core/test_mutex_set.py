"""Names of mutexes and of their sets."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.core.mutex_set import check_set_name


@pytest.mark.parametrize("name", ["printer", "ä", "a,b/c", "\udcff"])
def test_names_that_can_be_used(name: str) -> None:
    """One that another program wrote in other bytes than UTF-8 is among them."""
    assert check_set_name("the set", name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "the set is empty"),
        ("\ud800", "is not valid Unicode text"),
        (5, "the set must be str, not int"),
    ],
)
def test_names_that_cannot_be_used(name: object, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        check_set_name("the set", name)
