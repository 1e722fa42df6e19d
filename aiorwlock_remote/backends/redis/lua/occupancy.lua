-- One step of pending → using: the published set of the contenders that are pending at an
-- object, the string of the one that uses it, and two keys of our own.
--
-- KEYS  1 the set   2 the string   3 since, a hash: our pendings → µs of their writing
--       4 seen, a hash: other programs' pendings → µs when one of us saw them first
--       5 in a cluster: the prefix of the slot's channels, which never exists as a key
-- ARGV  1 kind   2 who   3 ms that a using record lives, or ''   4 d: the mark
--       w  become pending       p  the others that are pending      u  the one using
--       m  pending → using      d  drop a pending that is as it was
--       r  remove both          e  extend                     x  drop one that is using
-- Returns  p: {who, age in µs, mark} each   u: who, or nothing   the others: 0 or 1

--
-- What others read, the pending and the using record, is written last, and deleted first. A
-- time without its pending record means nothing: whoever sees it deletes it.

local PENDING, USING, SINCE, SEEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local KEPT = 86400000  -- ms without a new pending record until `since` is forgotten
local WATCHED = 3000   -- ms between looks within which a foreign record keeps its age
local call = redis.call
local kind, who, lives = ARGV[1], ARGV[2], ARGV[3]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A wrong type under a key is found before anything is changed.
typed('set', 'SCARD', PENDING)
local user = typed('string', 'GET', USING)
typed('hash', 'HLEN', SINCE)
typed('hash', 'HLEN', SEEN)

local function text(us)
  return string.format('%.0f', us)
end

local function leave(name)
  call('SREM', PENDING, name)
  call('HDEL', SINCE, name)
  call('HDEL', SEEN, name)
end

-- Find a damaged time before anything is changed.
local function check(key)
  local flat = call('HGETALL', key)
  for i = 1, #flat, 2 do
    if not string.match(flat[i + 1], '^%d+$') or tonumber(flat[i + 1]) > 2 ^ 53 then
      local shown = string.gsub(string.sub(flat[i], 1, 40), '[^%w_:.-]', '?')
      error({err = 'BADRECORD ' .. key .. ': field ' .. shown .. ' is damaged'})
    end
  end
end

-- Return the times of records that are still pending; delete those of the others.
local function times(key, pending)
  local found, flat = {}, call('HGETALL', key)
  for i = 1, #flat, 2 do
    if pending[flat[i]] then
      found[flat[i]] = tonumber(flat[i + 1])
    else
      call('HDEL', key, flat[i])
    end
  end
  return found
end

local function pendings()
  check(SINCE)
  check(SEEN)
  local others, pending = {}, {}
  local names = call('SMEMBERS', PENDING)
  for _, name in ipairs(names) do pending[name] = true end
  local since, seen = times(SINCE, pending), times(SEEN, pending)
  for _, name in ipairs(names) do
    if name ~= who then
      local at = since[name] or seen[name]
      if not at then
        at = now
        call('HSET', SEEN, name, text(now))
      end
      others[#others + 1] = {name, math.max(0, now - at), text(at)}
    end
  end
  call('PEXPIRE', SEEN, WATCHED)
  return others
end

if kind == 'w' then
  call('HSET', SINCE, who, text(now))
  call('PEXPIRE', SINCE, KEPT)
  call('SADD', PENDING, who)
  return 1
elseif kind == 'p' then
  return pendings()
elseif kind == 'u' then
  if not user or user == who then return false end
  -- A using record of another program without a TTL gets one when it is first seen.
  if lives ~= '' and who ~= '' then call('PEXPIRE', USING, lives, 'NX') end
  return user
elseif kind == 'm' then
  if user or call('SISMEMBER', PENDING, who) == 0 then return 0 end
  leave(who)
  if lives == '' then
    call('SET', USING, who, 'NX')
  else
    call('SET', USING, who, 'NX', 'PX', lives)
  end
  return 1
elseif kind == 'd' then
  local at = call('HGET', SINCE, who) or call('HGET', SEEN, who)
  if at ~= ARGV[4] then return 0 end
  leave(who)
  return 1
elseif kind == 'r' then
  leave(who)
end
-- r, x, e: remove or extend the using record, if it is that of `who`.
if user ~= who then return 0 end
if kind ~= 'e' then
  call('DEL', USING)
elseif lives ~= '' then
  call('PEXPIRE', USING, lives)
end
return 1
