"""Lends a book to two at once: ``python -m tests.examples.lend MODULE`` of examples/.

Prints what each was answered, how many copies are left, and how many records.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
module = import_module(sys.argv[1])


async def main() -> None:
    from django.test import AsyncClient  # noqa: PLC0415 - the module sets Django up

    client = AsyncClient()
    answers = await asyncio.gather(*(client.post("/books/1/lend") for _ in range(2)))
    answers.append(await client.post("/books/1/lend"))
    report = [" ".join(str(answer.status_code) for answer in answers)]
    report.append(str((await module.Book.objects.aget(pk=1)).copies))
    if hasattr(module, "Occupation"):
        left = [record async for record in module.Occupation.objects.all()]
        report.append(str(len(left)))
    sys.stdout.write("\n".join(report))


asyncio.run(main())
