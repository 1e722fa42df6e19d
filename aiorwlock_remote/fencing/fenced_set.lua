-- Set a string unless a higher fence has been here; the fence stays for ever.
-- KEYS: the string, its fence. ARGV: fence, value, milliseconds to live ('': for ever).
-- Returns {1, fence}, or {0, the highest fence}.
local highest = redis.call('GET', KEYS[2])
if highest and tonumber(highest) > tonumber(ARGV[1]) then
  return {0, highest}
end
redis.call('SET', KEYS[2], ARGV[1])
if ARGV[3] == '' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return {1, ARGV[1]}
