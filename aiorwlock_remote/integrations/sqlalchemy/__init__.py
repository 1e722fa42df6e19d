"""Row locks, occupied objects and fenced rows in tables of SQLAlchemy."""
