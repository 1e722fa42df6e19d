"""Names of files: no two resources share one, whatever they are called."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.backends.files.names import of_name, stem
from aiorwlock_remote.core.names import Resource, resource

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=250) | st.text(
    "aA%~,./{}é\u0301 ", min_size=1, max_size=8
)
resources = st.builds(resource, texts, texts)
prefixes = st.sampled_from(["", "shop-", "A/", ".", "é"])


def folded(name: str) -> str:
    """As file systems that fold case and rewrite Unicode see it."""
    return unicodedata.normalize("NFD", name).casefold()


@given(resources, resources, prefixes, prefixes)
def test_injective_wherever_files_are_kept(
    one: Resource, other: Resource, first: str, second: str
) -> None:
    same = first + one.key == second + other.key
    assert (folded(stem(first, one)) == folded(stem(second, other))) == same


@given(resources, prefixes)
def test_safe(name: Resource, prefix: str) -> None:
    found = stem(prefix, name)
    assert len((found + ".doorman").encode()) <= 200
    assert found.isascii()
    assert not set(found) & set('/\\:*?"<>| \0')
    assert not found.startswith(".")


@given(resources, prefixes)
def test_told_by_the_name_alone(name: Resource, prefix: str) -> None:
    found = stem(prefix, name)
    if "~" not in found:
        assert of_name(found, prefix) == name


@given(st.text(max_size=40), prefixes)
def test_any_name_of_a_file(name: str, prefix: str) -> None:
    found = of_name(name, prefix)
    assert found is None or stem(prefix, found) == name


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        ("order", 42, "order,42"),
        ("Order", 42, "%4frder,42"),
        ("..", "..", "%2e.,.."),
        ("a/b", "c,d", "a%2fb,c%2cd"),
        ("grün", 1, "gr%c3%bcn,1"),
    ],
)
def test_as_documented(kind: str, number: int | str, name: str) -> None:
    assert stem("", resource(kind, number)) == name
