"""Compare-and-set stores: what has not moved to `cas` yet."""
