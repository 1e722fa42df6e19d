"""For users of SQLAlchemy."""
