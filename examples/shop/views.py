"""A view that holds the lock of its order."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from aiorwlock_remote.integrations.django.views import get_held, hold
from shop import bank
from shop.models import Order


@hold("order:{order:int}", timeout=2, reason="payment")
def pay(request: HttpRequest, order: int) -> HttpResponseBase:
    """Charge an order once; 423 while another process has the order."""
    found = Order.objects.get(pk=order)
    if found.paid:
        return JsonResponse({"error": "it is paid"}, status=409)
    held = get_held(request)
    held.check()  # raises LockLost: before what cannot be undone
    bank.charge(order, held.fence)
    found.paid = True
    found.save()
    return JsonResponse({"paid": order})
