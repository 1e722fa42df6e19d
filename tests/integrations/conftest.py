"""What the tests of other libraries share."""

from __future__ import annotations

from tests.recipes.django_settings import configure

configure()  # models that are imported need it
