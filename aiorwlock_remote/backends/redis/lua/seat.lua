-- The seat rules: core/seat.py. (agree() is in save.lua.)

local CHUNK = 1000

local function note(holder, reason)
  local kept = {}
  for ending in string.gmatch(door.endings, '[^;]+') do kept[#kept + 1] = ending end
  kept[#kept + 1] = format('%.0f,%s,%s', door.last, holder, reason)
  door.endings = table.concat(kept, ';', math.max(1, #kept - 7))
  changed = true
end

-- Forget readers, whose number is known to the caller; what a slot has to do with it.
local function drop_readers(tickets)
  local fields = {}
  for i, ticket in ipairs(tickets) do
    fields[i] = reader_field(ticket)
    if door.slot and door.slot.ticket == ticket then door.slot = nil end
  end
  call('ZREM', READERS, unpack(tickets))
  call('HDEL', STATE, unpack(fields))
  door.readers = door.readers - #tickets
  changed, regranted = true, true
end

local function drop_writer()
  door.writer = nil
  changed, regranted = true, true
  if door.upgraded then
    door.upgraded = false
    for _, place in ipairs(queue) do
      if place.mode == 'w' then
        set('admit_upto', 0)
        set('admit_until', 0)
        return
      end
    end
  end
  admit_waiting()
end

local function drop(ticket)
  if door.writer then drop_writer() else drop_readers({ticket}) end
end

local function holder_in(details)
  return match(details, '^[^,]*')
end

local function expire_readers()
  local barred = door.barred_until
  while door.readers > 0 do
    local dead = call('ZRANGEBYSCORE', READERS, '-inf', now, 'WITHSCORES',
      'LIMIT', 0, CHUNK)
    if not dead[1] then break end
    local tickets, fields = {}, {}
    for i = 1, #dead, 2 do
      tickets[#tickets + 1] = dead[i]
      fields[#fields + 1] = reader_field(dead[i])
    end
    for i, text in ipairs(call('HMGET', STATE, unpack(fields))) do
      local delay = tonumber(match(text or '', '^%d+,[^,]*,(%d+)')) or 0
      if delay > 0 then barred = math.max(barred, dead[2 * i] + delay) end
    end
    drop_readers(tickets)
  end
  set('barred_until', barred)
end

local function expire()
  local writer = door.writer
  if writer and writer.expires and writer.expires <= now then
    local delay = delay_in(writer.details)
    drop_writer()
    if delay > 0 then
      set('barred_until', math.max(door.barred_until, writer.expires + delay))
    end
  elseif door.readers > 0 and tonumber(soonest[2]) <= now then
    expire_readers()
  end
  for i = #queue, 1, -1 do
    if queue[i].expires <= now then drop_place(i) end
  end
  if door.slot and door.slot.expires <= now then
    door.slot = nil
    changed = true
  end
end

-- Void the live grants: the seat is not ours any more.
local function void(reason)
  if door.writer then
    note(holder_in(door.writer.details), reason)
    drop_writer()
    return
  end
  if door.readers > 4 then
    note('*', reason)
  else
    for _, ticket in ipairs(call('ZRANGE', READERS, 0, -1)) do
      local _, details = details_of(ticket)
      note(holder_in(details), reason)
    end
  end
  while door.readers > 0 do
    drop_readers(call('ZRANGE', READERS, 0, CHUNK - 1))
  end
end

local function reconcile()
  if held() and seat_value ~= door.seat then
    void(seat_value and 'stolen' or 'forced')
  end
end

-- Whether a ticket has a grant that expire() and reconcile() would leave.
local function will_stay(ticket)
  local mode, expires = grant_of(ticket)
  if seat_value ~= door.seat or (expires and expires <= now) then return nil end
  return mode
end

local function foreign_seat()
  if not seat_value or seat_value == door.seat then return nil end
  return {value = seat_value, ticket = match(seat_value, '^(.+),') or seat_value}
end
