"""An order."""

from __future__ import annotations

from typing import Any

from django.db import models


class Order(models.Model):
    """What somebody has to pay."""

    total: Any = models.IntegerField()
    paid: Any = models.BooleanField(default=False)
