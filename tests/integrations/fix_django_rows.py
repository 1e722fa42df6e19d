"""Row locks by models of Django, on each database it is tested with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from django.db import models

from aiorwlock_remote.integrations.django.row_lock import RowLeaseFields, row_lock
from aiorwlock_remote.recipes import RowLock
from tests.recipes.occupied_django import close, database
from tests.recipes.row_sites import LockOf, RowSite


class Invoice(RowLeaseFields):
    """The user's."""

    total: Any = models.IntegerField(default=0)

    class Meta:
        app_label = "tests"
        db_table = "invoices"
        managed = False


def other_model(table: str) -> type[RowLeaseFields]:
    """As the program believes the table to be."""
    meta = type("Meta", (), {"app_label": f"tests_{table}", "db_table": table})
    body = {"Meta": meta, "__module__": __name__}
    return type(table.title(), (RowLeaseFields,), body)


OTHERS = {table: other_model(table) for table in ("nowhere", "bare", "odd")}


class DjangoSite(RowSite):
    """By ``row_lock(Invoice, …)``."""

    async def open(self) -> AsyncIterator[LockOf]:
        alias = database(self.url)
        try:
            yield partial(lock_of, alias, self.lease)
        finally:
            await close(alias)


def lock_of(
    alias: str, lease: float | None, key: int, table: str = "invoices"
) -> RowLock:
    model = OTHERS.get(table, Invoice)
    return row_lock(model, key, lease=lease, database=alias)
