"""Soaks: client processes that use the public API for hours while a store fails.

``python -m tests.soak STORE HOURS`` (``nox -s soak``) starts the store, its clients and
the judge, injects faults, and writes ``docs/evidence/STORE-DATE.json``.
"""
