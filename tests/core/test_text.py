"""Users' values in errors: short, and never the cause of another error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.core.names import check_prefix, encode
from aiorwlock_remote.core.text import (
    MAX_SHOWN,
    check_path,
    has_control_character,
    quoted,
)
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.url import parse

HUGE = 10**5000
LONG = "x" * 1_000_000


class Unshown:
    def __repr__(self) -> Never:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (1.5, "1.5"),
        ("it's", '"it\'s"'),
        ("\ud800\0", "'\\ud800\\x00'"),
        (HUGE, "<int>"),
        (Unshown(), "<Unshown>"),
        (LONG, f"'{'x' * (MAX_SHOWN - 1)}…"),
    ],
    ids=["number", "quote", "escape", "huge", "object", "long"],
)
def test_a_value_in_an_error(value: object, seen: str) -> None:
    assert quoted(value) == seen


@pytest.mark.parametrize(
    ("characters", "control"),
    [("\0\n\x1f\x7f\x80\x9f", True), (" ~\xa0é\u2028", False)],
)
def test_control_characters(characters: str, *, control: bool) -> None:
    for character in characters:
        assert has_control_character(f"a{character}b") is control


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_what_cannot_be_a_file(path: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a file"):
        check_path(path)


def test_a_file_whose_name_is_in_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "\udcff"
    assert check_path(path) == str(path)


@given(st.text())
def test_any_text(text: str) -> None:
    """A quoted text is one printable line."""
    seen = quoted(text)
    assert seen.encode()
    assert len(seen.splitlines()) == 1
    assert len(seen) <= MAX_SHOWN + 1
    assert seen == repr(text) or seen.endswith("…")


@pytest.mark.parametrize("value", [HUGE, -HUGE, LONG, [LONG], Unshown()], ids=range(5))
@pytest.mark.parametrize(
    "option",
    [
        *("lease", "max_waiters", "fair", "policy", "on_lost", "margin", "max_hold"),
        *("connect_timeout", "fence_memory", "min_replicas", "nonsense"),
    ],
)
def test_options_that_cannot_be_shown(option: str, value: object) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(ConfigurationError) as caught:
        _ = connect("memory://", **given)
    assert len(str(caught.value)) < 3 * MAX_SHOWN


@pytest.mark.parametrize(
    "refused",
    [
        lambda: check_prefix("%" + LONG),
        lambda: encode("\ud800" + LONG),
        lambda: check_seconds("timeout", HUGE),
        lambda: parse(f"redis://h?{LONG}=1").only(),
        lambda: parse(f"redis://h?{LONG}=1&{LONG}=1"),
        lambda: parse(f"redis://h?pool={LONG}").number("pool", 1),
        lambda: parse(f"redis://h?pool={'9' * 5000}").seconds("pool", 1),
        lambda: parse(f"redis://h?pool={'9' * 5000}").whole("pool", 1, least=0, most=9),
        lambda: parse(f"redis://h?pool={LONG}").yes("pool", default=True),
    ],
    ids=range(9),
)
def test_names_and_urls(refused: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refused()
    assert len(str(caught.value)) < 3 * MAX_SHOWN
