-- One step at one resource: aiorwlock_remote/core/transition.py in Lua, in several files.
--
-- KEYS  mutex, state, readers, queue (see keys.py; what is in them: record.lua); in a
--       cluster a fifth, which never exists: the prefix of the slot's channels
-- ARGV  1 how long a record is kept (us)   2 what to do, a letter   3 the caller's id
--       4... see main.lua
-- Returns the answer (see main.lua). No message is sent to the caller: {-9, answer} if it is to
-- be woken, {-9, answer, since, expires, fence, proof} if it has a pushed grant.

local READERS = KEYS[3]
local function read_state()
  return typed('hash', 'HMGET', STATE, 'v', 'last', 'number', 'seat', 'writer', 'queue',
    'barred_until', 'upgrader', 'endings', 'admit_upto', 'admit_until', 'turns',
    'upgraded', 'keep', 'pushed', 'readers', 'was', 'plain')
end
local stored = read_state()
local SET, members -- a pair's (S3): the readers' set, and how many are in it
local unreachable -- the client that fast.lua pushed the lock to, if it does not listen
local MAX_LOCAL_TURNS = 100
-- Patterns of the field `seat`; pair_head.lua has others.
local WRITER_VALUE, READERS_VALUE = '^(.+),%d+$', '^readers,%d+$'
