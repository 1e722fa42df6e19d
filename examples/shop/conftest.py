"""What the tests share. With pytest-django: its fixtures ``db`` and ``client``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import django
import pytest

if TYPE_CHECKING:
    from django.test import Client

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
os.environ["SHOP"] = ":memory:"
django.setup()

pytest_plugins = ["aiorwlock_remote.testing.plugin"]


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    """Make the tables."""
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", run_syncdb=True, verbosity=0)


@pytest.fixture
def client() -> Client:
    """Return a client that calls the views."""
    from django.test import Client  # noqa: PLC0415

    return Client()
