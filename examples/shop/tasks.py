"""A Celery task that takes the same lock as the view."""

from __future__ import annotations

from celery import Task, shared_task
from django.db import transaction

from aiorwlock_remote.integrations.django.views import get_locks
from aiorwlock_remote.sync import LockTimeout
from shop import bank
from shop.models import Order


@shared_task(bind=True, max_retries=100)  # type: ignore[untyped-decorator]
def charge_again(self: Task, order: int) -> None:
    """Charge an order that a view could not; if it is busy, try again in a second."""
    lock = get_locks().mutex("order", order)
    try:
        # The transaction begins and ends inside of the lock.
        with lock.acquire(timeout=0, reason="charge") as held, transaction.atomic():
            found = Order.objects.get(pk=order)
            if not found.paid:
                held.check()
                bank.charge(order, held.fence)
                found.paid = True
                found.save()
    except LockTimeout as exc:
        raise self.retry(exc=exc, countdown=1) from exc
