"""Small scripts for tests of the connection."""

from __future__ import annotations

import hashlib

from aiorwlock_remote.backends.redis.scripts import Script


def script(name: str, text: str) -> Script:
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha)


INCR = script("incr", "return redis.call('INCR', KEYS[1])")
PUSH = script("push", "return redis.call('RPUSH', KEYS[1], ARGV[1])")
BOTH = (INCR, PUSH)
