-- One step at one semaphore: aiorwlock_remote/core/permits.py in Lua, with what
-- core/transition.py does around it. A semaphore has scripts of its own, so that those of
-- the locks stay as small as they are.
--
-- KEYS  mutex, state, permits, queue (see keys.py; what is in them: permits_record.lua); in a
--       cluster a fifth, which never exists: the prefix of the slot's channels
-- ARGV  1 how long a record is kept (us)   2 what to do, a letter   3 the caller's id
--       4... see permits_main.lua
-- Returns the answer (see permits_main.lua), and {-9, answer} if the caller is to be woken:
-- no message is sent to it.

local PERMITS = KEYS[3]
local stored = typed('hash', 'HMGET', STATE, 'v', 'last', 'number', 'seat', 'limits',
  'queue', 'barred_until', 'endings', 'keep', 'was')
