"""A Django project with locks: views, a Celery task, and tests of both."""
