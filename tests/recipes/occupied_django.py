"""Django in tests: settings, a model with the table of the others, databases."""

from __future__ import annotations

from typing import Any

import pymysql
from asgiref.sync import sync_to_async
from django.db import connections, models
from django.utils.connection import ConnectionDoesNotExist

from tests.recipes.django_settings import configure

configure()

from aiorwlock_remote.integrations.django import occupancy as for_django  # noqa: E402
from aiorwlock_remote.recipes import Occupancy  # noqa: E402


class Occupation(for_django.OccupancyRecord):
    """The table of SQLAlchemy's, which has no number as its key."""

    who: Any = models.CharField(max_length=200, primary_key=True)

    class Meta:
        app_label = "tests"
        db_table = "occupancies"
        managed = False


class Book(models.Model):
    """Something to be occupied."""

    title: Any = models.CharField(max_length=10)

    class Meta:
        app_label = "tests"
        managed = False


class Novel(Book):
    """The same row, seen as more."""

    class Meta:
        app_label = "tests"
        managed = False


def database(url: str) -> str:
    """An alias for it."""
    scheme, _, rest = url.partition("://")
    engine = "sqlite3" if scheme == "sqlite" else scheme
    if scheme in {"mariadb", "mysql"}:
        engine = "mysql"
        pymysql.install_as_MySQLdb()
    config: dict[str, Any] = {"ENGINE": f"django.db.backends.{engine}"}
    if scheme == "sqlite":
        config["NAME"] = rest[1:]
        config["OPTIONS"] = {"timeout": 30}
    else:
        login, _, name = rest.partition("/")
        user, _, address = login.partition("@")
        host, _, port = address.partition(":")
        config |= {"NAME": name, "USER": user, "HOST": host, "PORT": port}
    connections.databases[url] = connections.configure_settings({"default": config})[
        "default"
    ]
    return url


def occupancy(alias: str, **ages: float | None) -> Occupancy:
    return for_django.occupancy(Occupation, database=alias, **ages)  # type: ignore[arg-type]


async def close(alias: str) -> None:
    """Of the thread that all of a test's steps are done in."""

    def in_thread() -> None:
        try:
            connections[alias].close()
        except ConnectionDoesNotExist:
            return

    await sync_to_async(in_thread)()
