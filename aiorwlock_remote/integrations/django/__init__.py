"""Row locks and occupied objects in Django models."""
