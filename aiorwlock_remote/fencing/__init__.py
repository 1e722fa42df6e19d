"""Resources that refuse old fences, so that a holder paused past its lease is refused.

The rule is the same everywhere: refuse a fence LOWER than the highest one seen, accept
an equal one, keep the higher one; on reads as well as on writes. Each module applies
the rule to one kind of resource: ``sql`` (any DB-API driver), ``redis``, ``cassandra``,
``files``, ``header`` (HTTP). For SQLAlchemy see
``aiorwlock_remote.integrations.sqlalchemy``.
"""
