"""A Django project in one file, with synchronous views.

``python examples/django_sync.py runserver``; WSGI servers take ``application``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.urls import path

from aiorwlock_remote.sync import LockTimeout, connect

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "for this example"),
)
django.setup()

# One for the process, for all threads of its server.
locks = connect(os.environ.get("LOCKS_URL", "sqlite:///locks.db"))
shelf = Path(os.environ.get("SHELF", "shelf.txt"))


def lend(request: HttpRequest, book: int) -> HttpResponseBase:
    """Lend one copy, if there is one."""
    del request
    try:
        with locks.mutex("book", book).acquire(timeout=5):
            copies = int(shelf.read_text())
            if not copies:
                return JsonResponse({"error": "all copies are lent"}, status=409)
            shelf.write_text(str(copies - 1))
            return JsonResponse({"left": copies - 1})
    except LockTimeout:
        return JsonResponse({"error": "busy, try again"}, status=503)


urlpatterns = [path("books/<int:book>/lend", lend)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
