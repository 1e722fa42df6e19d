-- Get a string, and keep everybody out who comes with a lower fence.
-- KEYS: the string, its fence. ARGV: fence.
-- Returns {1, value (false: none)}, or {0, the highest fence}.
local highest = redis.call('GET', KEYS[2])
if highest and tonumber(highest) > tonumber(ARGV[1]) then
  return {0, highest}
end
redis.call('SET', KEYS[2], ARGV[1])
return {1, redis.call('GET', KEYS[1])}
