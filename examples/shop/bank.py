"""A bank, which is another system: no transaction of ours covers it."""

from __future__ import annotations


def charge(order: int, fence: int) -> None:
    """Take the money of an order; a real bank refuses a fence that is too old."""
    print(f"order {order} is charged under fence {fence}")
