"""The logger of the Redis store, which all of its modules share."""

from __future__ import annotations

import logging
from functools import partial

from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")

# A `partial` adds no frame: each record names the function that logged the event.
log_redis: partial[None] = partial(log_event, log)
log_debug: partial[None] = partial(log_event, log, level=logging.DEBUG)
