-- The rules of the seat, the published mutex record, as in core/mutex_record.py; save.agree
-- is in save.lua.

local seat = {}

function seat.note(holder, reason)
  local kept = {}
  for ending in string.gmatch(door.endings, '[^;]+') do kept[#kept + 1] = ending end
  kept[#kept + 1] = format('%d,%s,%s', door.last, holder, reason)
  door.endings = table.concat(kept, ';', math.max(1, #kept - 7))
  step.changed = true
end

-- Remove the grants of readers, and a pending upgrade (slot) of one of them. They are deleted
-- when the state is written (save.lua).
function seat.drop_readers(tickets)
  for _, ticket in ipairs(tickets) do
    step.left[ticket] = true
    step.leaving[#step.leaving + 1] = ticket
    if door.slot and door.slot.ticket == ticket then door.slot = nil end
  end
  door.readers = door.readers - #tickets
  step.latest = nil
  step.changed, step.regranted = true, true
end

function seat.drop_writer()
  local ticket = door.writer.ticket
  door.writer = nil
  step.changed, step.regranted = true, true
  if door.pushed then -- nobody wrote: no write phase ends
    door.pushed = false
    turn.drop_claims(ticket)
    return
  end
  if door.upgraded then
    door.upgraded = false
    if queue.each('other')() then
      record.set('admit_upto', 0)
      record.set('admit_until', 0)
      return
    end
  end
  turn.admit_waiting()
end

function seat.drop(ticket)
  if door.writer then seat.drop_writer() else seat.drop_readers({ticket}) end
end

function seat.holder_in(details)
  return match(details, '^[^,]*')
end

function seat.expire_readers()
  local barred, seen = door.barred_until, 0
  while door.readers > 0 do
    local dead = call('ZRANGEBYSCORE', READERS, '-inf', now, 'WITHSCORES',
      'LIMIT', seen, CHUNK)
    if not dead[1] then break end
    local tickets, fields = {}, {}
    for i = 1, #dead, 2 do
      tickets[#tickets + 1] = dead[i]
      fields[#fields + 1] = record.reader_field(dead[i])
    end
    seen = seen + #tickets
    for i, text in ipairs(call('HMGET', STATE, unpack(fields))) do
      local delay = tonumber(match(text or '', '^%d+,[^,]*,(%d+)')) or 0
      if delay > 0 then barred = math.max(barred, dead[2 * i] + delay) end
    end
    seat.drop_readers(tickets)
  end
  record.set('barred_until', barred)
end

function seat.expire()
  local writer = door.writer
  if writer and writer.expires and writer.expires <= now then
    local delay = record.delay_in(writer.details)
    seat.drop_writer()
    if delay > 0 then
      record.set('barred_until', math.max(door.barred_until, writer.expires + delay))
    end
  elseif door.readers > 0 and step.soonest <= now then
    seat.expire_readers()
  end
  queue.expire()
  if door.slot and door.slot.expires <= now then
    door.slot = nil
    step.changed = true
  end
end

-- End the live grants, for a seat that another program has changed or deleted.
function seat.void(reason)
  if door.writer then
    seat.note(seat.holder_in(door.writer.details), reason)
    seat.drop_writer()
    return
  end
  if door.readers > 4 then
    seat.note('*', reason)
  else
    for _, ticket in ipairs(record.first_readers(4)) do
      local _, details = record.details_of(ticket)
      seat.note(seat.holder_in(details), reason)
    end
  end
  seat.drop_readers(record.first_readers(door.readers))
end

function seat.reconcile()
  if record.held() and seat_value ~= door.seat then
    seat.void(seat_value and 'stolen' or 'forced')
  end
end

-- Return the mode of a ticket's grant that expire() and reconcile() would keep, else nil.
function seat.will_stay(ticket)
  local mode, expires = record.grant_of(ticket)
  if seat_value ~= door.seat or (expires and expires <= now) then return nil end
  return mode
end

function seat.foreign_seat()
  if not seat_value or seat_value == door.seat then return nil end
  return {value = seat_value, ticket = match(seat_value, '^(.+),') or seat_value}
end

-- Return whether a foreign holder keeps this mode out.
function seat.bars(foreign, mode)
  return foreign ~= nil
end

-- Release a ticket whose record was lost and whose mutex key counts as foreign. Return the
-- foreign holder afterwards, and whether the ticket held the lock. If the readers' sorted set
-- was deleted, the first of them removes `readers`: the state still has the value and names.
function seat.take_out(foreign, ticket, mode)
  if foreign and mode ~= 'r' and foreign.ticket == ticket then return nil, true end
  if foreign and foreign.value == step.unclaimed
    and record.text_in(call('HGET', STATE, record.reader_field(ticket))) then
    step.leaving[#step.leaving + 1], step.left[ticket] = ticket, true
    return nil, true
  end
  return foreign, false
end

-- Break the foreign mutex key with this value. Return the holder then, and the answer.
function seat.force(foreign, value)
  if foreign and foreign.value == value then return nil, 1 end
  return foreign, 0
end
