-- The record (core/doorman.py) of a semaphore, and how it is stored.
--
-- state    hash. v=1; last, number, barred_until, created, updated: numbers; seat: our
--          mutex value; endings, keep: as in record.lua
--          queue, place:p:<client_id>: see queue.lua; an entry has limit,who at its end
--          permit:<ticket>: fence,limit,since,holder,lock_delay,who
--          limits: limit:count;... how many of the held permits have which limit
--          was: as in record.lua
-- permits  sorted set: ticket by expiry (+inf: never)
-- queue    sorted set: see queue.lua
--
-- Nothing is written before the end of the step (permits_save.lua): until then, grants that
-- the step has met or changed are in `met`, and the sorted set is as it was. A step that is
-- stopped at one of its calls leaves what record.lua says, and the next step repairs it.

local mutex_value = typed('string', 'GET', MUTEX)
local kept = typed('sorted set', 'ZCARD', PERMITS)

local doorman = {
  last = record.number_in(stored[2], 'last'),
  number = record.number_in(stored[3], 'number'),
  seat = record.text_in(stored[4]),
  barred_until = record.number_in(stored[7], 'barred_until'),
  endings = stored[8] or '',
  held = 0,
  limits = {}, -- how many permits are held, by their limit
}
if stored[9] ~= 'never' then record.number_in(stored[9], 'keep') end
for ending in string.gmatch(doorman.endings, '[^;]+') do
  if not match(ending, '^%d+,[%x*]+,%a+$') then record.damaged(STATE, 'endings') end
end
local met = {} -- grants, by ticket
local step = {
  changed = false, -- anything in the record
  regranted = false, -- a grant was made, ended or renewed
  horizon = now, -- until when the record is needed
  first = nil, -- the permit that ended first when the step began: ticket, score
  outdated = false, -- the value of the mutex key, if it is that of a former grant of ours
}
local CHUNK, KEEP = 1000, 9

-- Read an entry's limit and `who`.
function record.read_entry(entry, rest)
  local limit, who = match(rest, '^(%d+),(%["[^%c]*%])$')
  if not limit or not record.fits(limit) or tonumber(limit) == 0 then
    record.damaged(STATE, 'place:' .. entry.field)
  end
  entry.limit, entry.who = tonumber(limit), who
end

function record.rest_of(entry)
  return format('%d,%s', entry.limit, entry.who)
end

function record.damaged_permit(ticket)
  record.damaged(STATE, 'permit:' .. record.some_of(ticket))
end

-- Return a grant from its stored text, and its expiry (inf: never).
function record.permit_in(ticket, text, expires)
  local fence, limit, since, details = match(text or '', '^(%d+),(%d+),(%d+),(.*)$')
  if not fence or not record.fits(fence) or not record.fits(limit)
    or not record.fits(since) or tonumber(limit) == 0 or not record.details_fit(details) then
    record.damaged_permit(ticket)
  end
  return {ticket = ticket, fence = tonumber(fence), limit = tonumber(limit),
    since = tonumber(since), expires = expires < math.huge and expires or nil,
    details = details}
end

-- Return the grants of tickets and scores, {ticket, score, ticket...}, as stored.
function record.permits_in(flat)
  local found = {}
  for start = 1, #flat, 2 * CHUNK do
    local fields, stop = {}, math.min(#flat, start + 2 * CHUNK - 1)
    for i = start, stop, 2 do fields[#fields + 1] = 'permit:' .. flat[i] end
    for i, text in ipairs(call('HMGET', STATE, unpack(fields))) do
      local ticket, score = flat[start + 2 * i - 2], flat[start + 2 * i - 1]
      found[#found + 1] = met[ticket]
        or record.permit_in(ticket, text, record.score_in({ticket, score}))
    end
  end
  return found
end

-- Count the permits that the sorted set and the state know. Delete what a step that was
-- stopped has left of others. none: no ticket holds, whoever knows it.
function record.recount(none)
  local fields, members, orphans = {}, {}, {}
  local flat = call('HGETALL', STATE)
  for i = 1, #flat, 2 do
    if sub(flat[i], 1, 7) == 'permit:' then fields[flat[i]] = flat[i + 1] ~= '' end
  end
  flat = call('ZRANGE', PERMITS, 0, -1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    local field = 'permit:' .. flat[i]
    if fields[field] and not none then
      members[#members + 1], members[#members + 2] = flat[i], flat[i + 1]
      fields[field] = nil
    else
      orphans[#orphans + 1] = flat[i]
    end
  end
  for field in pairs(fields) do orphans[#orphans + 1] = sub(field, 8) end
  kept, doorman.limits = #members / 2, {}
  for _, permit in ipairs(record.permits_in(members)) do
    doorman.limits[permit.limit] = (doorman.limits[permit.limit] or 0) + 1
  end
  record.delete_permits(orphans)
  step.changed, stored[9] = true, ''
end

-- Delete tickets from the sorted set, and their fields; in this order the next step finds
-- what is left (recount) if this one is stopped.
function record.delete_permits(tickets)
  for first = 1, #tickets, CHUNK do
    local some, fields = {unpack(tickets, first, math.min(#tickets, first + CHUNK - 1))}, {}
    for i, ticket in ipairs(some) do fields[i] = 'permit:' .. ticket end
    call('HDEL', STATE, unpack(fields))
    call('ZREM', PERMITS, unpack(some))
  end
end

local counted = 0
for item in string.gmatch(stored[5] or '', '[^;]+') do
  local limit, count = match(item, '^(%d+):(%d+)$')
  if not limit or not record.fits(limit) or not record.fits(count) or tonumber(limit) == 0 then
    record.damaged(STATE, 'limits')
  end
  doorman.limits[tonumber(limit)] = tonumber(count)
  counted = counted + count
end

if stored[1] ~= '1' then
  for i = 1, 10 do
    if stored[i] then
      return redis.error_reply('BADRECORD ' .. STATE .. ': field v is of an unknown version')
    end
  end
  -- The state is gone, so the permits and the queue mean nothing.
  if kept > 0 or typed('sorted set', 'ZCARD', QUEUE) > 0 then call('DEL', PERMITS, QUEUE) end
  kept = 0
elseif doorman.seat then
  if not match(doorman.seat, '^permits,%d+$') or doorman.last == 0 then
    record.damaged(STATE, doorman.last == 0 and 'last' or 'seat')
  end
  if kept > 0 and counted ~= kept then record.recount(false) end
  if kept > 0 then
    step.first = call('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')
    record.score_in(step.first)
    if kept > 1 then record.score_in(call('ZRANGE', PERMITS, -1, -1, 'WITHSCORES')) end
  else
    doorman.seat = nil -- the permits were lost: our value is removed
    record.recount(true)
  end
  doorman.held = kept
elseif counted > 0 then
  record.damaged(STATE, 'seat')
elseif kept > 0 then
  record.recount(true)
end
-- The step that changed the mutex key was stopped before it did.
local was = record.text_in(stored[10])
if was and was == mutex_value and was ~= doorman.seat then
  step.outdated, step.changed, mutex_value = was, true, doorman.seat
end

-- Return the grant of a ticket, or nil.
function record.permit_of(ticket)
  local permit = met[ticket]
  if permit then return not permit.gone and permit or nil end
  if not step.first then return nil end
  local score = step.first[1] == ticket and step.first[2] or call('ZSCORE', PERMITS, ticket)
  if not score then return nil end
  permit = record.permit_in(ticket, call('HGET', STATE, 'permit:' .. ticket),
    record.score_in({ticket, score}))
  met[ticket] = permit
  return permit
end

function record.count(limit, more)
  local count = (doorman.limits[limit] or 0) + more
  doorman.limits[limit] = count > 0 and count or nil
  doorman.held = doorman.held + more
  step.changed, step.regranted = true, true
end

function record.put_permit(permit)
  permit.dirty, permit.moved = true, true
  met[permit.ticket] = permit
  record.count(permit.limit, 1)
  record.will_mean(permit)
end

function record.drop_permit(permit)
  met[permit.ticket] = {gone = true}
  record.count(permit.limit, -1)
end

function record.delay_of(permit)
  return tonumber(match(permit.details, '^[^,]*,(%d+)'))
end

-- The record is needed until a grant has ended, and until its lock delay has passed.
function record.will_mean(permit)
  if permit.expires then
    step.horizon = math.max(step.horizon, permit.expires + record.delay_of(permit))
  end
end

-- Return so many of the grants that end first, or last, in this order: the ticket and the
-- score of each in turn.
function record.at_the_end(count, last)
  local moved, found, flat = {}, {}, {}
  for _, permit in pairs(met) do
    if permit.gone or permit.moved then moved[#moved + 1] = permit end
  end
  if step.first then
    local stop = count + #moved - 1
    flat = last and call('ZRANGE', PERMITS, 0, stop, 'REV', 'WITHSCORES')
      or call('ZRANGE', PERMITS, 0, stop, 'WITHSCORES')
  end
  for i = 1, #flat, 2 do
    local permit = met[flat[i]]
    if not (permit and (permit.gone or permit.moved)) then
      found[#found + 1] = {flat[i], record.score_in({flat[i], flat[i + 1]}), flat[i + 1]}
    end
  end
  for _, permit in ipairs(moved) do
    if not permit.gone then
      found[#found + 1] = {permit.ticket, permit.expires or math.huge, ''}
    end
  end
  if moved[1] then
    table.sort(found, function(a, b)
      if last then a, b = b, a end
      if a[2] == b[2] then return a[1] < b[1] end
      return a[2] < b[2]
    end)
  end
  local items = {}
  for i = 1, math.min(count, #found) do
    items[2 * i - 1], items[2 * i] = found[i][1], found[i][3]
  end
  return items, found[1] and found[1][2]
end

function record.ends() -- of the last grant; nil: one never does, or there is none
  local _, expires = record.at_the_end(1, true)
  return expires and expires < math.huge and expires or nil
end

-- Return who holds the semaphore, for messages: the holders whose leases end first.
function record.describe(foreign)
  if foreign then return {'f' .. foreign.ticket} end
  local shown = {}
  if doorman.held > 0 then
    for i, permit in ipairs(record.permits_in(record.at_the_end(5))) do
      shown[i] = 'p' .. permit.details
    end
  end
  return shown
end
