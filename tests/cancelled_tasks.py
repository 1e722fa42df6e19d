"""A program that cancels every task of its loop, those of the library among them."""

from __future__ import annotations

import asyncio


async def cancel_all_others() -> None:
    """Cancel all tasks but the current one, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
