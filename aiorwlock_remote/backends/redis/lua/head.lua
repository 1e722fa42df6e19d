-- One step at one resource: aiorwlock_remote/core/transition.py in Lua, in several files.
--
-- KEYS  seat, state, readers, queue (see keys.py; what is in them: record.lua); in a
--       cluster a fifth, which never exists: the prefix of the slot's channels
-- ARGV  1 how long a record is kept (us)   2 what to do, a letter   3 the caller's id
--       4... see main.lua
-- Returns the answer (see main.lua). No message is sent to the caller: {-9, answer} if it is to
-- be woken, {-9, answer, since, expires, fence, proof} if it has a pushed grant.
--
-- All times are microseconds of TIME, read once; below 2^53, so exact. `..` writes 14
-- digits, string.format('%d') all of them, if the server is a 64-bit one.

local call = redis.call
local SEAT, STATE, READERS, QUEUE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local format = string.format
local now_text = format('%d', now)
if now_text + 0 ~= now then
  return redis.error_reply('ERR a 32-bit server cannot be used')
end
local function read_state()
  return typed('hash', 'HMGET', STATE, 'v', 'last', 'number', 'seat', 'writer', 'queue',
    'barred_until', 'upgrader', 'endings', 'admit_upto', 'admit_until', 'turns',
    'upgraded', 'keep', 'pushed', 'readers', 'was')
end
local stored = read_state()
local op, own, wake = ARGV[2], ARGV[3], KEYS[5]
local SET, members -- a pair's (S3): the readers' set, and how many are in it
local unheard -- the client that fast.lua pushed the lock to, if it does not listen
local SEAT_TURNS = 100
-- Patterns of the field `seat`; pair_head.lua has others.
local WRITER_SEAT, READERS_SEAT = '^(.+),%d+$', '^readers,%d+$'
