"""What a test of the etcd store sees of it that no user does."""

from __future__ import annotations

from typing import Any

from aiorwlock_remote import Locks
from aiorwlock_remote.backends.etcd.store import EtcdStore


def store_of(locks: Locks) -> EtcdStore:
    store: Any = locks._session.client.store
    assert isinstance(store, EtcdStore)
    return store
