"""The same library; a book is occupied while it is lent.

    uvicorn django_after:application     then: curl -X POST localhost:8000/books/1/lend

A second request at the same time is answered by 423. The project needs one more table,
and one line before the view.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection, models
from django.http import HttpRequest, HttpResponse
from django.urls import path

from aiorwlock_remote import LockBusy

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("LIBRARY", "library.sqlite3"),
        }
    },
    ROOT_URLCONF=__name__,
)
django.setup()

from aiorwlock_remote.integrations.django.occupancy import (  # noqa: E402
    OccupancyRecord,
    occupancy,
)


class Book(models.Model):
    """A book, of which ``copies`` are on the shelf."""

    copies: Any = models.IntegerField()

    class Meta:
        """An app of one file."""

        app_label = "library"


class Occupation(OccupancyRecord):
    """Who uses which object now."""

    class Meta(OccupancyRecord.Meta):
        """An app of one file."""

        app_label = "library"


def in_use(busy: LockBusy) -> HttpResponse:
    """Somebody else was first."""
    return HttpResponse(f"{busy}\n", status=busy.status_hint)


occupied = occupancy(Occupation).occupied


@occupied(lambda _request, pk: ("library.book", pk), busy=in_use)
async def lend(_request: HttpRequest, pk: int) -> HttpResponse:
    """Lend a copy: take it from the shelf and print its label."""
    book = await Book.objects.aget(pk=pk)
    await asyncio.sleep(0.3)  # a label is printed
    book.copies -= 1
    await book.asave()
    return HttpResponse(f"{book.copies} left\n")


urlpatterns = [path("books/<int:pk>/lend", lend)]
application = get_asgi_application()


def make_tables() -> None:
    """Create the tables, in place of migrations, and a book with three copies."""
    with connection.schema_editor() as editor:
        for model in (Book, Occupation):
            editor.create_model(model)
    Book.objects.create(pk=1, copies=3)


if not connection.introspection.table_names():
    make_tables()
