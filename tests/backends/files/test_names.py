"""Names of files: no two resources share one, whatever they are called."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.backends.files.names import resource_of_name, stem
from aiorwlock_remote.core.names import Resource, resource, semaphore

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=250) | st.text(
    "aA%~,./{}é\u0301 ", min_size=1, max_size=8
)
prefixes = st.sampled_from(["", "shop-", "A/", ".", "é"])
resources = st.builds(resource, texts, texts, prefixes) | st.builds(
    semaphore, texts, texts, prefixes
)


def folded(name: str) -> str:
    """As file systems that fold case and rewrite Unicode see it."""
    return unicodedata.normalize("NFD", name).casefold()


@given(resources, resources)
def test_injective_wherever_files_are_kept(one: Resource, other: Resource) -> None:
    same = one.key == other.key
    assert (folded(stem(one)) == folded(stem(other))) == same


@given(resources)
def test_names_are_safe_for_a_file_system(name: Resource) -> None:
    found = stem(name)
    assert len((found + ".doorman").encode()) <= 200
    assert found.isascii()
    assert not set(found) & set('/\\:*?"<>| \0')
    assert not found.startswith(".")


@given(resources)
def test_a_slot_file_is_recognised_by_its_name(name: Resource) -> None:
    found = stem(name)
    if "~" not in found:
        assert resource_of_name(found) == name


@given(st.text(max_size=40))
def test_any_name_of_a_file(name: str) -> None:
    found = resource_of_name(name)
    assert found is None or stem(found) == name


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
def test_names_as_documented(kind: str, number: int | str, name: str) -> None:
    assert stem(resource(kind, number)) == name


def test_a_semaphore_is_recognised_by_its_name() -> None:
    assert stem(semaphore("api", "stripe")) == "api%semaphore,stripe"
    assert stem(resource("api%semaphore", "stripe")) == "api%25semaphore,stripe"
    assert resource_of_name("api%semaphore,stripe") == semaphore("api", "stripe")
