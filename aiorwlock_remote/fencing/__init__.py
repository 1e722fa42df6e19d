"""Resources that refuse old fences: who was paused past its lease comes too late.

The rule is one everywhere: refuse a fence LOWER than the highest seen, accept an equal
one, keep the higher one, on reads as well as on writes. Each module keeps it in one
kind of resource: ``sql`` (any DB-API driver), ``redis``, ``cassandra``, ``files``,
``header`` (HTTP). For SQLAlchemy see ``aiorwlock_remote.integrations.sqlalchemy``.
"""
