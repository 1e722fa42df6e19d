-- Return the stored state of a resource on a pair of published keys; change nothing.
--
-- KEYS     the writer's string, state, expiry, queue, the readers' set (and in a cluster
--          one that never exists)
-- Returns  what look.lua returns, and the members of the set.

local call = redis.call
local clock = call('TIME')
return {clock[1] * 1000000 + clock[2], typed('string', 'GET', KEYS[1]),
  call('PEXPIRETIME', KEYS[1]), typed('hash', 'HGETALL', KEYS[2]),
  typed('sorted set', 'ZRANGE', KEYS[4], 0, -1),
  typed('sorted set', 'ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), typed('set', 'SMEMBERS', KEYS[5])}
