-- One step on a mutex set: the published sorted set (member = mutex, score = seconds of
-- the last acquire or update, 0 = never), and two keys of our own.
--
-- KEYS  1 the sorted set   2 its state, a hash   3 its queue, a sorted set by number
--       4 in a cluster: the prefix of the slot's channels, which never exists as a key
-- ARGV  1 microseconds the state is kept   2 prefix of channels   3 our client id
--       4 kind
--       a  pool life (target ticket lease more){…}     ask; life 0: create no entry
--       r  ticket remove      release
--       n  (ticket){…}        update
--       t  lease number (entry){number} (ticket){…}    withdraw entries and tickets
--       c  lease name         create           d  name   remove
-- A queue entry is "pool,target", a pool "client_id.number": tasks of one client that
-- wait for the same target; "" is any mutex. A message with the entry as its text, on the
-- channel of the client, wakes them.
-- Returns {entries of the calling client to wake, answer, …}; a: {fence, name} or {-1, µs
-- to the next change that comes without a message, or -1}; r: {1} or {0, why}; n: {fence} or
-- {0, why} each; c, d: 0 or 1.
--
-- The state: last = the last score in µs; number = of the last entry; t<ticket> =
-- "score,lease,name" or "score:former,lease,name" of a grant, where the mutex may still have
-- the former score; m<name> = the ticket that had it last; p<entry> = "expires,called", called
-- when a mutex stood free for it.
--
-- The published score is what others read. It is the last write of a step that takes a mutex,
-- and the first of one that gives it back: a step that is stopped at any of its calls leaves
-- grants without their score, which hold nothing, and entries without an expiry, which the next
-- step drops (test_stopped_steps.py).

local SET, STATE, QUEUE = KEYS[1], KEYS[2], KEYS[3]
local WINDOW = 100000  -- µs that an entry which was called blocks those behind it
local call = redis.call
local memory, channel, client_id, kind = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local own_wakeups = {}

-- A wrong type under a key is found before anything is changed, and so is a damaged
-- field that this step reads: check() below.
typed('sorted set', 'ZCARD', SET)
typed('hash', 'HLEN', STATE)
typed('sorted set', 'ZCARD', QUEUE)

local MOST = 2 ^ 53 - 2

local function fits(digits)
  return string.match(digits, '^%d+$') ~= nil and tonumber(digits) <= MOST
end

local function damaged(field)
  local shown = string.gsub(string.sub(field, 1, 40), '[^%w_:.,-]', '?')
  error({err = 'BADRECORD ' .. STATE .. ': field ' .. shown .. ' is damaged'})
end

local function check_number(field)
  local text = call('HGET', STATE, field)
  if text and not fits(text) then damaged(field) end
end

-- A ticket is a secret: an error shows only the beginning of the field's name.
local function check_tickets(first, by)
  for i = first, #ARGV, by do
    local text = call('HGET', STATE, 't' .. ARGV[i])
    local score, former, lease = string.match(text or '0,0,', '^(%d+%.?%d*):?(%d*%.?%d*),(%d+),')
    if not score or tonumber(score) > MOST or (tonumber(former) or 0) > MOST or not fits(lease)
    then
      damaged('t' .. string.sub(ARGV[i], 1, 4) .. '...')
    end
  end
end

local function check_entries()
  for _, entry in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
    local text = call('HGET', STATE, 'p' .. entry)
    local expires, called = string.match(text or '0,', '^(%d+),(%d*)$')
    if not expires or not fits(expires) or not (called == '' or fits(called))
      or not string.find(entry, ',', 1, true) then
      damaged('p' .. entry)
    end
  end
end

-- Check all that this step reads before it changes anything: otherwise a renewal of two
-- mutexes would have renewed the first when it finds the second damaged.
local function check()
  check_number('last')
  check_number('number')
  if kind == 'a' then
    check_tickets(8, 4)
  elseif kind == 'r' then
    check_tickets(5, #ARGV)
  elseif kind == 'n' then
    check_tickets(5, 1)
  elseif kind == 't' then
    check_tickets(7 + ARGV[6], 1)
  end
  if kind ~= 'n' and kind ~= 'd' and call('ZCARD', QUEUE) > 0 then check_entries() end
end

local function seconds(us)
  return string.format('%.0f.%06d', math.floor(us / 1000000), us % 1000000)
end

local function score_of(name)
  local score = call('ZSCORE', SET, name)
  return score and (tonumber(score) or math.huge)
end

local function free(name, lease)
  local score = score_of(name)
  return score and score < tonumber(seconds(now - lease))
end

-- Count the mutexes that are free for an acquire of any. One with a negative score, which
-- is no time, is taken by name only.
local function count_free(lease)
  return call('ZCOUNT', SET, '0', '(' .. seconds(now - lease))
end

local function keep(until_us)
  local at = math.ceil((until_us + memory) / 1000)
  for _, key in ipairs({STATE, QUEUE}) do
    if call('PEXPIRETIME', key) < at then call('PEXPIREAT', key, at) end
  end
end

-- The next score: the clock, but no two are equal, and none is a whole second, so that
-- a program that writes whole seconds never writes one of ours.
local function next_score()
  local us = math.max(now, (tonumber(call('HGET', STATE, 'last') or 0)) + 1)
  return us % 1000000 == 0 and us + 1 or us
end

-- Take a mutex, or renew it: then it has the score `former`.
local function write(name, ticket, lease, former)
  local us = next_score()
  local score = seconds(us)
  if former then score = score .. ':' .. string.format('%.6f', former) end
  call('HSET', STATE, 'last', string.format('%.0f', us), 'm' .. name, ticket,
    't' .. ticket, score .. ',' .. lease .. ',' .. name)
  keep(us + lease)
  call('ZADD', SET, seconds(us), name)
  return us
end

local function forget(ticket, name)
  call('HDEL', STATE, 't' .. ticket)
  if name and call('HGET', STATE, 'm' .. name) == ticket then
    call('HDEL', STATE, 'm' .. name)
  end
end

-- Return the mutex that a ticket holds, its lease, and its score; or nil, and why it holds none.
local function held(ticket)
  local text = call('HGET', STATE, 't' .. ticket)
  if not text then return nil, 'expired' end
  local mine, former, lease, name = string.match(text, '^([^,:]*):?([^,]*),([^,]*),(.*)$')
  local score, reason = score_of(name), nil
  if not score or score == 0 then
    reason = 'forced'
  elseif score ~= tonumber(mine) and score ~= tonumber(former) then
    reason = 'stolen'
  elseif score <= tonumber(seconds(now - lease)) then
    reason = 'expired'
  end
  if not reason then return name, tonumber(lease), score end
  forget(ticket, name)
  return nil, reason
end

local function leave(entry)
  call('HDEL', STATE, 'p' .. entry)
  call('ZREM', QUEUE, entry)
end

-- Return the entries in order; drop those whose time has run out.
local function entries()
  local found = {}
  for _, entry in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
    local text = call('HGET', STATE, 'p' .. entry) or ''
    local expires, called = string.match(text, '^(%d+),(%d*)$')
    if expires and tonumber(expires) > now then
      local target = string.match(entry, '^[^,]*,(.*)$')
      called = tonumber(called)
      found[#found + 1] = {entry = entry, target = target, expires = expires,
        called = called, missed_claim = called and now - called > WINDOW}
    else
      leave(entry)
    end
  end
  return found
end

-- Wake the entries that are next: as many as there are mutexes for them.
local function wake_next(lease)
  if call('ZCARD', QUEUE) == 0 then return end
  local left, promised = count_free(lease), {}
  for _, p in ipairs(entries()) do
    local may_take = left > 0
    if p.target ~= '' then
      may_take = not promised[p.target] and free(p.target, lease)
        and (left > 0 or score_of(p.target) < 0)
    end
    if may_take and not p.missed_claim then
      left = left - 1
      if p.target ~= '' then promised[p.target] = true end
      if not p.called then
        call('HSET', STATE, 'p' .. p.entry,
          p.expires .. ',' .. string.format('%.0f', now))
        local their_client_id = string.match(p.entry, '^[^.]*')
        if their_client_id == client_id then
          own_wakeups[#own_wakeups + 1] = p.entry
        else
          -- pcall: a user without the right to publish must still be able to release.
          redis.pcall(KEYS[4] and 'SPUBLISH' or 'PUBLISH', channel .. their_client_id, p.entry)
        end
      end
    end
  end
end

-- Return the mutex that this entry may take now, or nil. entry nil: a caller without one.
local function choose(entry, target, lease)
  local left = count_free(lease)
  if target == '' and left == 0 then return nil end
  if target ~= '' and not free(target, lease) then return nil end
  local ahead, reserved = 0, {}
  for _, p in ipairs(entries()) do
    if p.entry == entry then break end
    if not p.missed_claim and p.target == '' then
      ahead = ahead + 1
    elseif not p.missed_claim and not reserved[p.target] and free(p.target, lease) then
      ahead, reserved[p.target] = ahead + 1, true
    end
  end
  if target ~= '' then
    -- An entry ahead that accepts any mutex takes another one, if there is another.
    local barred = reserved[target] or (ahead >= left and score_of(target) >= 0)
    return not barred and target or nil
  end
  if ahead >= left then return nil end
  local some = call('ZRANGEBYSCORE', SET, '0', '(' .. seconds(now - lease),
    'LIMIT', 0, ahead + 1)
  for _, name in ipairs(some) do
    if not reserved[name] then return name end
  end
end

-- Return the microseconds until a lease runs out, or an entry that was woken is skipped.
local function next_change(target, lease, others_first)
  if others_first then return WINDOW + 1000 end
  local score
  if target == '' then
    score = call('ZRANGEBYSCORE', SET, seconds(now - lease), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)[2]
    score = score and tonumber(score)
  else
    score = score_of(target)
  end
  if not score or score > 1e11 then return -1 end
  return math.max(0, math.ceil(score * 1000000 + lease - now)) + 1000
end

local function ask(pool, life, target, ticket, lease, more)
  local entry = life > 0 and pool .. ',' .. target or nil
  local name = held(ticket)  -- the command is repeated after a lost answer
  if not name then
    name = choose(entry, target, lease)
    local before = name and call('HGET', STATE, 'm' .. name)
    if before then forget(before, name) end
  end
  local again = entry and (not name or more == '1')
  if entry and name then leave(entry) end
  local us = name and write(name, ticket, lease)
  if again then
    if not call('ZSCORE', QUEUE, entry) then
      call('ZADD', QUEUE, call('HINCRBY', STATE, 'number', 1), entry)
    end
    call('HSET', STATE, 'p' .. entry, string.format('%.0f,', now + life))
    keep(now + lease)
  end
  if name then return {us, name} end
  local stands = target == '' and count_free(lease) > 0 or free(target, lease)
  return {-1, next_change(target, lease, stands)}
end
