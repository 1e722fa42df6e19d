-- The start of a step: the scripts of locks and of semaphores begin with it.
--
-- All times are microseconds of TIME, read once; below 2^53, so exact. `..` writes 14
-- digits, string.format('%d') all of them, if the server is a 64-bit one.

local call = redis.call
local MUTEX, STATE, QUEUE = KEYS[1], KEYS[2], KEYS[4]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local format = string.format
local now_text = format('%d', now)
if now_text + 0 ~= now then
  return redis.error_reply('ERR a 32-bit server cannot be used')
end
local op, own, wake = ARGV[2], ARGV[3], KEYS[5]
