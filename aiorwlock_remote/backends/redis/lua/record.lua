-- The record (core/doorman.py), how it is stored, and who holds the resource.
--
-- state    hash. v=1; last, number, admit_upto, admit_until, turns, barred_until,
--          created, updated: numbers; seat: the mutex value we wrote; upgraded: 1;
--          writer: ticket,since,expires,holder,lock_delay,who
--          reader:<ticket>: since,holder,lock_delay,who
--          upgrader: expires,called,client_id,ticket
--          endings: fence,holder,reason;...
--          queue, place:<mode>:<client_id>: see queue.lua; an entry has `who` at its end. One with
--          a claim has three more items in `who`: the ticket, the lease, the holder.
--          pushed: the fence, if the writer has its grant from an offer and did not confirm
--          readers: how many readers hold
--          was: the value that the mutex key had before, if it may still have it
--          plain: when nothing else than a writer was of interest, see plain.lua
--          keep: until when (ms) the keys live at least, or never; empty while a step sets it
--          A field that is empty or absent has its default. Others are left alone.
-- readers  sorted set: ticket by expiry (+inf: never). All share the fence `last`.
--          A ticket that has no field in the state is not a reader.
-- queue    sorted set: see queue.lua
--
-- `who` is a text of the client's, here and there at the end: it may contain commas.
-- Readers are changed in place, as there may be many; the rest is written by save.lua.
--
-- Functions live in tables, one a file: each call of the script makes them all anew, and
-- that is cheap only while they share few local names.

-- A step may be stopped at any of its calls, as the right for one of them is missing. What it
-- wrote stays, so a step writes in this order (save.write; test_stopped_steps.py):
--
--   1. What means nothing without the state: tickets in the sorted set. Queue entries.
--      A ticket comes to the sorted set before the state has it, and leaves it after: if a step
--      was stopped, the set has more tickets than the state counts (`readers`).
--   2. If nobody holds any more: the deletion of the mutex key. A record without its key holds
--      nothing.
--   3. The state, by one HSET: with it the step has happened.
--   4. The removal of what means nothing from now on.
--   5. The TTLs, and that they are set (`keep`).
--   6. The mutex key, which other programs read.
--
-- The next step repairs what one that was stopped has left: recount() below drops tickets
-- without fields and fields without tickets, the key gets the value of the record if it has
-- the one of `was`, and the TTLs are set again unless `keep` says that they are.

local mutex_value = typed('string', 'GET', MUTEX)
local kept = typed('sorted set', 'ZCARD', READERS)

local doorman = {
  last = record.number_in(stored[2], 'last'),
  number = record.number_in(stored[3], 'number'),
  seat = record.text_in(stored[4]),
  barred_until = record.number_in(stored[7], 'barred_until'),
  endings = stored[9] or '',
  admit_upto = record.number_in(stored[10], 'admit_upto'),
  admit_until = record.number_in(stored[11], 'admit_until'),
  turns = record.number_in(stored[12], 'turns'),
  upgraded = stored[13] == '1',
  pushed = false,
  readers = 0,
}
local counted = record.number_in(stored[16], 'readers')
if stored[14] ~= 'never' then record.number_in(stored[14], 'keep') end
local pushed_fence = record.number_in(stored[15], 'pushed')
record.number_in(stored[18], 'plain')
if stored[13] and stored[13] ~= '' and stored[13] ~= '1' then
  record.damaged(STATE, 'upgraded')
end
for ending in string.gmatch(doorman.endings, '[^;]+') do
  if not match(ending, '^%d+,[%x*]+,%a+$') then record.damaged(STATE, 'endings') end
end
local step = {
  changed = false, -- anything in the record
  regranted = false, -- a grant was made, ended or renewed
  new_readers = false, -- the sorted set was made in this step
  horizon = now, -- until when the record is needed
  latest = nil, -- expiry of the last reader, if it was asked for
  soonest = nil, -- expiry of the first reader, when the step began
  unclaimed = nil, -- the mutex value of readers whose sorted set was deleted
  leaving = {}, -- tickets of readers to be deleted
  left = {}, -- the same tickets, each with true
  orphans = false, -- a ticket of the sorted set has no field
  outdated = false, -- the value of the mutex key, if it is that of a former grant of ours
  comers = {}, -- since,details of new readers, by ticket
  fields = {}, -- of the state, to be written: name, value, name...
}

if stored[1] ~= '1' then
  for i = 1, 18 do
    if stored[i] then
      return redis.error_reply('BADRECORD ' .. STATE .. ': field v is of an unknown version')
    end
  end
  -- The state is gone, so the readers and the queue mean nothing.
  if kept > 0 or typed('sorted set', 'ZCARD', QUEUE) > 0 then call('DEL', READERS, QUEUE) end
  kept = 0
end

local CHUNK, KEEP = 1000, 14

-- Delete tickets from the sorted set, and their fields; in this order the next step finds
-- what is left (recount) if this one is stopped.
function record.delete_readers(tickets)
  for first = 1, #tickets, CHUNK do
    local some, fields = {unpack(tickets, first, math.min(#tickets, first + CHUNK - 1))}, {}
    for i, ticket in ipairs(some) do fields[i] = record.reader_field(ticket) end
    if SET then members = members - call('SREM', SET, unpack(some)) end
    call('HDEL', STATE, unpack(fields))
    call('ZREM', READERS, unpack(some))
  end
end

-- Return how many readers hold: those that the sorted set and the state know. Delete what
-- a step that was stopped has left of others. none: no ticket holds, whoever knows it.
function record.recount(none)
  local fields, known, orphans = {}, 0, {}
  local flat = call('HGETALL', STATE)
  for i = 1, #flat, 2 do
    if sub(flat[i], 1, 7) == 'reader:' then fields[flat[i]] = flat[i + 1] ~= '' end
  end
  for _, ticket in ipairs(call('ZRANGE', READERS, 0, -1)) do
    local field = record.reader_field(ticket)
    if fields[field] and not none then
      known, fields[field] = known + 1, nil
    else
      orphans[#orphans + 1] = ticket
    end
  end
  for field in pairs(fields) do orphans[#orphans + 1] = sub(field, 8) end
  record.delete_readers(orphans)
  step.changed, stored[14] = true, ''
  return known
end

function record.reader_field(ticket)
  return 'reader:' .. ticket
end

if record.text_in(stored[5]) then
  local ticket, since, expires, details = match(stored[5], '^([^,]*),(%d+),(%w+),(.*)$')
  local fits = ticket and match(ticket, '^%C+$') and record.fits(since)
    and (expires == 'never' or record.fits(expires)) and record.details_fit(details)
  if not fits then record.damaged(STATE, 'writer') end
  if not doorman.seat or match(doorman.seat, WRITER_VALUE) ~= ticket then
    record.damaged(STATE, 'seat')
  end
  doorman.writer = {ticket = ticket, since = since, expires = tonumber(expires),
    details = details}
  -- With the fence, so that it is said of no later writer, whoever wrote that one.
  doorman.pushed = pushed_fence == doorman.last
elseif doorman.seat then
  if not match(doorman.seat, READERS_VALUE) then record.damaged(STATE, 'seat') end
  if kept > 0 and kept ~= counted then kept = record.recount(false) end
  if kept > 0 then
    step.soonest = record.score_in(call('ZRANGE', READERS, 0, 0, 'WITHSCORES'))
    step.latest = record.score_in(call('ZRANGE', READERS, -1, -1, 'WITHSCORES'))
    doorman.readers = kept
  else
    step.unclaimed = doorman.seat
    doorman.seat = nil -- the readers were lost, so our value counts as foreign
  end
end
if counted > 0 and not doorman.seat and not step.unclaimed then record.damaged(STATE, 'seat') end
if kept > doorman.readers then record.recount(true) end
-- The step that changed the mutex key was stopped before it did.
local was = record.text_in(stored[17])
if was and was == mutex_value and was ~= doorman.seat then
  step.outdated, step.changed, mutex_value = was, true, doorman.seat
end
if doorman.last == 0 and (doorman.writer or doorman.readers > 0) then
  record.damaged(STATE, 'last')
end

if record.text_in(stored[8]) then
  local expires, called, client_id, ticket = match(stored[8], '^(%d+),(%d),([^,]*),(.*)$')
  if not expires or ticket == '' or not record.fits(expires)
    or string.find(stored[8], '%c') then
    record.damaged(STATE, 'upgrader')
  end
  doorman.upgrader = {expires = tonumber(expires), called = called == '1', client_id = client_id,
    ticket = ticket}
end

-- Read an entry's `who`, and its claim: ticket, lease and holder. A JSON text of four items,
-- whose last is a text, cannot end as a claim does.
function record.read_entry(entry, who)
  if not match(who, '^%["[^%c]*%]$') then record.damaged(STATE, 'place:' .. entry.field) end
  entry.who, entry.ticket, entry.lease, entry.holder = who, '', 0, ''
  local text, ticket, lease, holder = match(who, '^(%[.*),"([^"\\]+)",(%d+),"(%x+)"%]$')
  if not text or entry.mode ~= 'w' then return end
  if not record.fits(lease) or tonumber(lease) == 0 then
    record.damaged(STATE, 'place:' .. entry.field)
  end
  entry.who, entry.ticket, entry.lease, entry.holder = text .. ']', ticket, tonumber(lease),
    holder
end

function record.rest_of(entry)
  if entry.ticket == '' then return entry.who end
  return format('%s,"%s",%d,"%s"]', sub(entry.who, 1, -2), entry.ticket, entry.lease,
    entry.holder)
end

function record.held()
  return doorman.writer ~= nil or doorman.readers > 0
end

function record.ends() -- of the last grant; nil: one never does, or there is none
  if doorman.writer then return doorman.writer.expires end
  if doorman.readers == 0 then return nil end
  if not step.latest then
    local found = call('ZRANGE', READERS, 0, #step.leaving, 'REV', 'WITHSCORES')
    local i = 1
    while step.left[found[i]] do i = i + 2 end
    step.latest = record.score_in({found[i], found[i + 1]})
  end
  return step.latest < math.huge and step.latest or nil
end

-- Return the first so many readers, in the order of their expiry.
function record.first_readers(count)
  local found = {}
  for _, ticket in ipairs(call('ZRANGE', READERS, 0, count + #step.leaving - 1)) do
    if not step.left[ticket] and #found < count then found[#found + 1] = ticket end
  end
  return found
end

-- Return the mode and expiry (nil: never) of the grant of a ticket, or nil.
function record.grant_of(ticket)
  if doorman.writer then
    if doorman.writer.ticket == ticket then return 'w', doorman.writer.expires end
  elseif doorman.readers > 0 and not step.left[ticket] then
    local score = tonumber(call('ZSCORE', READERS, ticket) or nil)
    if score then return 'r', score < math.huge and score or nil end
  end
end

-- Return since, and "holder,lock_delay,who", of a ticket that has a grant.
function record.details_of(ticket)
  if doorman.writer then return doorman.writer.since, doorman.writer.details end
  local text = step.comers[ticket] or call('HGET', STATE, record.reader_field(ticket))
    or ''
  local since, details = match(text, '^(%d+),(.*)$')
  if not since then record.damaged(STATE, 'reader:' .. record.some_of(ticket)) end
  return since, details
end

-- Check those readers that are about to be read: of these tickets, those that expire, and
-- as many more, in their order, as may be shown or noted. Not all: there may be many.
function record.check_readers(tickets, shows)
  if doorman.readers == 0 then return end
  local gone = {}
  if step.soonest <= now then gone = call('ZRANGEBYSCORE', READERS, '-inf', now) end
  local count = (shows or mutex_value ~= doorman.seat) and #gone + #tickets + 5 or #gone
  if op == 'f' then count = doorman.readers end
  for first = 0, count - 1, CHUNK do
    local last = math.min(count, first + CHUNK) - 1
    record.check_some(call('ZRANGE', READERS, first, last), true)
  end
  for first = 1, #tickets, CHUNK do
    record.check_some({unpack(tickets, first, math.min(#tickets, first + CHUNK - 1))})
  end
  if step.orphans then
    step.latest, doorman.readers = nil, record.recount(false)
  end
end

function record.check_some(tickets, are_readers)
  if not tickets[1] then return end
  local fields = {}
  for i, ticket in ipairs(tickets) do fields[i] = record.reader_field(ticket) end
  for i, text in ipairs(call('HMGET', STATE, unpack(fields))) do
    local since, details = match(text or '', '^(%d+),(.*)$')
    local fits = since and record.fits(since) and record.details_fit(details)
    if not fits and (are_readers or call('ZSCORE', READERS, tickets[i])) then
      if record.text_in(text) then
        record.damaged(STATE, 'reader:' .. record.some_of(tickets[i]))
      end
      step.orphans = true
    end
  end
end

function record.delay_in(details)
  return tonumber(match(details, '^[^,]*,(%d+)')) or 0
end

-- The record is needed until a grant has ended, and until its lock delay has passed.
function record.will_mean(expires, details)
  if expires then
    step.horizon = math.max(step.horizon, expires + record.delay_in(details))
  end
end

-- Add readers: {ticket, expiry or nil, details} each.
function record.add_readers(comers)
  local scores, fields, n = {}, step.fields, #step.fields
  for i, comer in ipairs(comers) do
    local ticket, expires, details = comer[1], comer[2], comer[3]
    scores[2 * i - 1] = expires or '+inf'
    scores[2 * i] = ticket
    step.left[ticket] = nil
    step.comers[ticket] = now_text .. ',' .. details
    fields[n + 2 * i - 1] = record.reader_field(ticket)
    fields[n + 2 * i] = step.comers[ticket]
    record.will_mean(expires, details)
  end
  step.latest = nil
  step.new_readers = step.new_readers or doorman.readers == 0
  doorman.readers = doorman.readers + #comers
  call('ZADD', READERS, unpack(scores))
  step.changed, step.regranted = true, true
end

function record.put_writer(ticket, expires, details)
  doorman.writer = {ticket = ticket, since = now_text, expires = expires,
    details = details, dirty = true}
  record.will_mean(expires, details)
  step.changed, step.regranted = true, true
end

-- Return who holds the resource, for messages: the holders whose leases end first.
function record.describe(foreign)
  if foreign then return {'f' .. foreign.ticket} end
  if doorman.writer then return {'w' .. doorman.writer.details} end
  local shown = {}
  if doorman.readers > 0 then
    for i, ticket in ipairs(record.first_readers(5)) do
      local _, details = record.details_of(ticket)
      shown[i] = 'r' .. details
    end
  end
  return shown
end
