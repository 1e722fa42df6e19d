-- The record (core/record.py), how it is stored, and who holds the resource.
--
-- state    hash. v=1; last, number, admit_upto, admit_until, turns, barred_until,
--          created, updated: numbers; seat: the seat value we wrote; upgraded: 1;
--          writer: ticket,since,expires,holder,lock_delay,who
--          reader:<ticket>: since,holder,lock_delay,who
--          upgrader: expires,called,gate,ticket
--          endings: fence,holder,reason;...
--          places: how many are in the queue
--          keep: until when (ms) the keys live at least, or never: see save()
--          A field that is empty or absent has its default. Others are left alone.
-- readers  sorted set: ticket by expiry (+inf: never). All share the fence `last`.
-- queue    hash: r:<gate> or w:<gate> ->
--          number,since,expires,window,waiting,claim_until,who
--
-- `who` is a text of the client's, here and there at the end: it may contain commas.
-- Readers are changed in place, as there may be many; the rest is written by save.lua.
--
-- Functions live in tables, one a file: each call of the script makes them all anew, and
-- that is cheap only while they share few local names.

local match, sub = string.match, string.sub

local record = {}

function record.damaged(what)
  error({err = 'BADRECORD the stored record is damaged: ' .. what})
end

local MOST = 2 ^ 53 - 2 -- one more is exact, too

function record.number_in(text, what)
  if not text or text == '' then return 0 end
  local number = match(text, '^%d+$') and tonumber(text)
  if not number or number > MOST then record.damaged(what) end
  return number
end

function record.text_in(text)
  return text and text ~= '' and text or nil
end

local seat_value = call('GET', SEAT)
local flat_queue = call('HGETALL', QUEUE)

local door = {
  last = record.number_in(stored[2], 'last'),
  number = record.number_in(stored[3], 'number'),
  seat = record.text_in(stored[4]),
  barred_until = record.number_in(stored[7], 'barred_until'),
  endings = stored[9] or '',
  admit_upto = record.number_in(stored[10], 'admit_upto'),
  admit_until = record.number_in(stored[11], 'admit_until'),
  turns = record.number_in(stored[12], 'turns'),
  upgraded = stored[13] == '1',
  readers = 0,
}
local queue = {} -- the places, by number
local step = {
  changed = false, -- anything in the record
  regranted = false, -- somebody came, went or was renewed
  new_readers = false, -- the sorted set was made in this step
  horizon = now, -- until when the record means something
  latest = nil, -- expiry of the last reader, if it was asked for
  soonest = nil, -- expiry of the first reader, when the step began
  unclaimed = nil, -- the seat value of readers whose sorted set was deleted
  gone_places = {}, -- fields of the queue to be deleted
  comers = {}, -- since,details of readers that entered, by ticket
  fields = {}, -- of the state, to be written: name, value, name...
}

if stored[1] ~= '1' then
  for i = 1, 14 do
    if stored[i] then
      return redis.error_reply('BADRECORD the stored record is of an unknown version')
    end
  end
  -- The state is gone, what belonged to it means nothing.
  if flat_queue[1] or call('ZCARD', READERS) > 0 then call('DEL', READERS, QUEUE) end
  flat_queue = {}
end

if record.text_in(stored[5]) then
  local ticket, since, expires, details = match(stored[5], '^([^,]*),(%d+),(%w+),(.*)$')
  if not ticket then record.damaged('writer') end
  door.writer = {ticket = ticket, since = since, expires = tonumber(expires),
    details = details}
elseif door.seat then
  step.soonest = tonumber(call('ZRANGE', READERS, 0, 0, 'WITHSCORES')[2])
  if step.soonest then
    door.readers = call('ZCARD', READERS)
  else
    step.unclaimed = door.seat
    door.seat = nil -- ours, but whose? The readers were lost: it is foreign.
  end
end

if record.text_in(stored[8]) then
  local expires, called, gate, ticket = match(stored[8], '^(%d+),(%d),([^,]*),(.*)$')
  if not expires then record.damaged('upgrader') end
  door.slot = {expires = tonumber(expires), called = called == '1', gate = gate,
    ticket = ticket}
end

for i = 1, #flat_queue, 2 do
  local field = flat_queue[i]
  local number, since, expires, window, waiting, claim, who = match(flat_queue[i + 1],
    '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d*),(.*)$')
  if not number then record.damaged('queue') end
  queue[#queue + 1] = {field = field, mode = sub(field, 1, 1), gate = sub(field, 3),
    number = tonumber(number), since = since, expires = tonumber(expires),
    window = tonumber(window), waiting = tonumber(waiting),
    claim_until = tonumber(claim), who = who}
end
if queue[2] then
  table.sort(queue, function(a, b) return a.number < b.number end)
end

function record.set(name, value)
  if door[name] ~= value then
    door[name] = value
    step.changed = true
  end
end

function record.alter(place, name, value)
  if place[name] ~= value then
    place[name] = value
    place.dirty = true
    step.changed = true
  end
end

function record.place_of(gate, mode)
  for i, place in ipairs(queue) do
    if place.gate == gate and place.mode == mode then return place, i end
  end
end

function record.drop_place(i)
  step.gone_places[#step.gone_places + 1] = table.remove(queue, i).field
  step.changed = true
end

function record.held()
  return door.writer ~= nil or door.readers > 0
end

function record.ends() -- of the last grant; nil: one never does, or there is none
  if door.writer then return door.writer.expires end
  if door.readers == 0 then return nil end
  local last = step.latest or tonumber(call('ZRANGE', READERS, -1, -1, 'WITHSCORES')[2])
  step.latest = last
  return last < math.huge and last or nil
end

-- The grant of a ticket: mode, expiry (nil: never); or nil.
function record.grant_of(ticket)
  if door.writer then
    if door.writer.ticket == ticket then return 'w', door.writer.expires end
  elseif door.readers > 0 then
    local score = tonumber(call('ZSCORE', READERS, ticket) or nil)
    if score then return 'r', score < math.huge and score or nil end
  end
end

function record.reader_field(ticket)
  return 'reader:' .. ticket
end

-- since, and holder,lock_delay,who of a ticket that has a grant
function record.details_of(ticket)
  if door.writer then return door.writer.since, door.writer.details end
  local text = step.comers[ticket] or call('HGET', STATE, record.reader_field(ticket))
    or ''
  local since, details = match(text, '^(%d+),(.*)$')
  if not since then record.damaged('reader') end
  return since, details
end

function record.delay_in(details)
  return tonumber(match(details, '^[^,]*,(%d+)')) or 0
end

-- The record means something as long as a grant lives, and after it bars others.
function record.will_mean(expires, details)
  if expires then
    step.horizon = math.max(step.horizon, expires + record.delay_in(details))
  end
end

-- Readers enter: {ticket, expiry or nil, details} each.
function record.add_readers(comers)
  local scores, fields, n = {}, step.fields, #step.fields
  for i, comer in ipairs(comers) do
    local ticket, expires, details = comer[1], comer[2], comer[3]
    scores[2 * i - 1] = expires or '+inf'
    scores[2 * i] = ticket
    step.comers[ticket] = now_text .. ',' .. details
    fields[n + 2 * i - 1] = record.reader_field(ticket)
    fields[n + 2 * i] = step.comers[ticket]
    record.will_mean(expires, details)
  end
  step.latest = nil
  step.new_readers = step.new_readers or door.readers == 0
  -- A step that failed may have left readers in the set whom the record does not know.
  if door.readers == 0 and call('ZCARD', READERS) > 0 then call('DEL', READERS) end
  door.readers = door.readers + #comers
  call('ZADD', READERS, unpack(scores))
  step.changed, step.regranted = true, true
end

function record.put_writer(ticket, expires, details)
  door.writer = {ticket = ticket, since = now_text, expires = expires,
    details = details, dirty = true}
  record.will_mean(expires, details)
  step.changed, step.regranted = true, true
end

-- Who holds the resource, for people; those whose leases end first.
function record.describe(foreign)
  if foreign then return {'f' .. foreign.ticket} end
  if door.writer then return {'w' .. door.writer.details} end
  local shown = {}
  if door.readers > 0 then
    for i, ticket in ipairs(call('ZRANGE', READERS, 0, 4)) do
      local _, details = record.details_of(ticket)
      shown[i] = 'r' .. details
    end
  end
  return shown
end
