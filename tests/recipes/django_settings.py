"""Django is set up once in a process: for all tests alike, databases come later."""

from __future__ import annotations

import django
from django.conf import settings


def configure() -> None:
    """Before any model is imported."""
    if settings.configured:
        return
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": memory}, INSTALLED_APPS=[], USE_TZ=True)
    django.setup()
