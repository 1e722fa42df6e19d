-- Return the stored state of a resource; change nothing.
--
-- KEYS     mutex, state, readers, queue (and in a cluster one that never exists)
-- Returns  {now, mutex record or nil, when it expires (ms; negative: never), state, queue,
--          readers}: the hash and the readers (with scores) as flat lists.

local call = redis.call
local clock = call('TIME')
return {clock[1] * 1000000 + clock[2], typed('string', 'GET', KEYS[1]),
  call('PEXPIRETIME', KEYS[1]), typed('hash', 'HGETALL', KEYS[2]),
  typed('sorted set', 'ZRANGE', KEYS[4], 0, -1),
  typed('sorted set', 'ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')}
