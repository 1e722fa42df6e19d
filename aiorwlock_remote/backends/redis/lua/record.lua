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
-- Readers are changed in place, as there may be many; the rest is written by save().

local format, match, sub = string.format, string.match, string.sub

local function damaged(what)
  error({err = 'BADRECORD the stored record is damaged: ' .. what})
end

local function number_in(text, what)
  if not text or text == '' then return 0 end
  return tonumber(text) or damaged(what)
end

local function text_in(text)
  return text and text ~= '' and text or nil
end

local seat_value = call('GET', SEAT)
local flat_queue = call('HGETALL', QUEUE)
local soonest = call('ZRANGE', READERS, 0, 0, 'WITHSCORES')

local door = {
  last = number_in(stored[2], 'last'),
  number = number_in(stored[3], 'number'),
  seat = text_in(stored[4]),
  barred_until = number_in(stored[7], 'barred_until'),
  endings = stored[9] or '',
  admit_upto = number_in(stored[10], 'admit_upto'),
  admit_until = number_in(stored[11], 'admit_until'),
  turns = number_in(stored[12], 'turns'),
  upgraded = stored[13] == '1',
  created = number_in(stored[14], 'created'),
  readers = 0,
}
local queue = {} -- the places, by number
local gone_places = {} -- fields to be deleted
local changed = false -- anything in the record
local regranted = false -- somebody came, went or was renewed
local horizon = now -- until when the record means something
local new_readers = false -- the sorted set was made in this step

if stored[1] ~= '1' then
  for i = 1, 15 do
    if stored[i] then
      return redis.error_reply('BADRECORD the stored record is of an unknown version')
    end
  end
  -- The state is gone, what belonged to it means nothing.
  if flat_queue[1] or soonest[1] then call('DEL', READERS, QUEUE) end
  flat_queue, soonest = {}, {}
end

if text_in(stored[5]) then
  local ticket, since, expires, details = match(stored[5], '^([^,]*),(%d+),(%w+),(.*)$')
  if not ticket then damaged('writer') end
  door.writer = {ticket = ticket, since = since, expires = tonumber(expires),
    details = details}
elseif soonest[1] and door.seat then
  door.readers = call('ZCARD', READERS)
else
  if soonest[1] then call('DEL', READERS) end
  door.seat = nil -- ours, but whose? The readers were lost: it is foreign.
end

if text_in(stored[8]) then
  local expires, called, gate, ticket = match(stored[8], '^(%d+),(%d),([^,]*),(.*)$')
  if not expires then damaged('upgrader') end
  door.slot = {expires = tonumber(expires), called = called == '1', gate = gate,
    ticket = ticket}
end

for i = 1, #flat_queue, 2 do
  local field = flat_queue[i]
  local number, since, expires, window, waiting, claim, who = match(flat_queue[i + 1],
    '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d*),(.*)$')
  if not number then damaged('queue') end
  queue[#queue + 1] = {field = field, mode = sub(field, 1, 1), gate = sub(field, 3),
    number = tonumber(number), since = since, expires = tonumber(expires),
    window = tonumber(window), waiting = tonumber(waiting),
    claim_until = tonumber(claim), who = who}
end
if queue[2] then
  table.sort(queue, function(a, b) return a.number < b.number end)
end

local function set(name, value)
  if door[name] ~= value then
    door[name] = value
    changed = true
  end
end

local function alter(place, name, value)
  if place[name] ~= value then
    place[name] = value
    place.dirty = true
    changed = true
  end
end

local function place_of(gate, mode)
  for i, place in ipairs(queue) do
    if place.gate == gate and place.mode == mode then return place, i end
  end
end

local function drop_place(i)
  gone_places[#gone_places + 1] = table.remove(queue, i).field
  changed = true
end

local function held()
  return door.writer ~= nil or door.readers > 0
end

local function ends() -- of the last grant; nil: one never does, or there is none
  if door.writer then return door.writer.expires end
  if door.readers == 0 then return nil end
  local last = tonumber(call('ZRANGE', READERS, -1, -1, 'WITHSCORES')[2])
  return last < math.huge and last or nil
end

-- The grant of a ticket: mode, expiry (nil: never); or nil.
local function grant_of(ticket)
  if door.writer then
    if door.writer.ticket == ticket then return 'w', door.writer.expires end
  elseif door.readers > 0 then
    local score = tonumber(call('ZSCORE', READERS, ticket) or nil)
    if score then return 'r', score < math.huge and score or nil end
  end
end

local function reader_field(ticket)
  return 'reader:' .. ticket
end

-- since, and holder,lock_delay,who of a ticket that has a grant
local function details_of(ticket)
  if door.writer then return door.writer.since, door.writer.details end
  local text = call('HGET', STATE, reader_field(ticket)) or ''
  local since, details = match(text, '^(%d+),(.*)$')
  if not since then damaged('reader') end
  return since, details
end

local function delay_in(details)
  return tonumber(match(details, '^[^,]*,(%d+)')) or 0
end

-- Readers enter: {ticket, expiry or nil, details} each.
local function add_readers(comers)
  local scores, fields = {}, {}
  for i, comer in ipairs(comers) do
    scores[2 * i - 1] = comer[2] or '+inf'
    scores[2 * i] = comer[1]
    fields[2 * i - 1] = reader_field(comer[1])
    fields[2 * i] = format('%.0f,%s', now, comer[3])
    if comer[2] then horizon = math.max(horizon, comer[2] + delay_in(comer[3])) end
  end
  new_readers = new_readers or door.readers == 0
  door.readers = door.readers + #comers
  call('ZADD', READERS, unpack(scores))
  call('HSET', STATE, unpack(fields))
  changed, regranted = true, true
end

local function put_writer(ticket, expires, details)
  door.writer = {ticket = ticket, since = format('%.0f', now), expires = expires,
    details = details, dirty = true}
  if expires then horizon = math.max(horizon, expires + delay_in(details)) end
  changed, regranted = true, true
end

-- Who holds the resource, for people; those whose leases end first.
local function describe(foreign)
  if foreign then return {'f' .. foreign.ticket} end
  if door.writer then return {'w' .. door.writer.details} end
  local shown = {}
  if door.readers > 0 then
    for i, ticket in ipairs(call('ZRANGE', READERS, 0, 4)) do
      local _, details = details_of(ticket)
      shown[i] = 'r' .. details
    end
  end
  return shown
end
