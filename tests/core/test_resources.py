"""Resources of several kinds, in the tables that all of them are looked up in."""

from __future__ import annotations

import copy
import pickle

import pytest

from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.names import KeyPair, Resource

KINDS = Resource, KeyPair, SetMember


def test_equal_names_of_another_kind_are_another_lock() -> None:
    same = [kind("order", "42") for kind in KINDS]
    assert len(set(same)) == len(KINDS)
    table = {resource: resource.label for resource in same}
    assert [table[kind("order", "42")] for kind in KINDS] == [r.label for r in same]


@pytest.mark.parametrize("kind", KINDS)
def test_copies_stay_what_they_are(kind: type[Resource]) -> None:
    resource = kind("order", "42")
    for again in (pickle.loads(pickle.dumps(resource)), copy.copy(resource)):  # noqa: S301 - our own
        assert type(again) is kind
        assert again == resource
        assert again.label == resource.label
