"""For users of Django."""
