"""Small scripts for tests of the connection."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.connection.protocol import Script

INCR = Script("incr", "return redis.call('INCR', KEYS[1])")
PUSH = Script("push", "return redis.call('RPUSH', KEYS[1], ARGV[1])")
BOTH = (INCR, PUSH)
