"""Tests of the view and the task: no server, no sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery.exceptions import Retry
from django.test import Client, override_settings

from aiorwlock_remote import sync
from aiorwlock_remote.testing.memory import FaultyMemory
from shop import bank
from shop.models import Order
from shop.tasks import charge_again


@pytest.fixture(autouse=True)
def _locks_of_the_test(lock_store: FaultyMemory) -> Iterator[None]:
    with override_settings(AIORWLOCK_REMOTE={"store": lock_store}):
        yield


@pytest.fixture
def order() -> int:
    made = Order.objects.create(total=30)
    return int(made.pk)


def test_an_order_is_charged_once(client: Client, order: int) -> None:
    assert client.post(f"/orders/{order}/pay").status_code == 200
    assert client.post(f"/orders/{order}/pay").status_code == 409


def test_another_process_has_the_order(
    client: Client, order: int, sync_rival_locks: sync.Locks
) -> None:
    with sync_rival_locks.mutex("order", order):
        assert client.post(f"/orders/{order}/pay").status_code == 423
        with pytest.raises(Retry):
            charge_again.apply(args=[order], throw=True)
    charge_again(order)
    assert Order.objects.get(pk=order).paid


def test_the_lock_is_lost_while_the_bank_works(
    client: Client,
    order: int,
    lock_store: FaultyMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(order: int, fence: int) -> None:
        del fence
        lock_store.lose("order", order)

    monkeypatch.setattr(bank, "charge", lose)
    assert client.post(f"/orders/{order}/pay").status_code == 503
    assert not Order.objects.get(pk=order).paid  # the transaction was rolled back


def test_the_store_is_down(
    client: Client, order: int, lock_store: FaultyMemory
) -> None:
    with lock_store.down():
        assert client.post(f"/orders/{order}/pay").status_code == 503
