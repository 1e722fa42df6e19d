-- The rules of the published mutex record, as in core/mutex_record.py; save.sync_mutex
-- is in save.lua.

local mutex = {}

-- Remove the grants of readers, and a pending upgrade of one of them. They are deleted
-- when the state is written (save.lua).
function mutex.drop_readers(tickets)
  for _, ticket in ipairs(tickets) do
    step.left[ticket] = true
    step.leaving[#step.leaving + 1] = ticket
    if doorman.upgrader and doorman.upgrader.ticket == ticket then doorman.upgrader = nil end
  end
  doorman.readers = doorman.readers - #tickets
  step.latest = nil
  step.changed, step.regranted = true, true
end

function mutex.drop_writer()
  local ticket = doorman.writer.ticket
  doorman.writer = nil
  step.changed, step.regranted = true, true
  if doorman.pushed then -- no client wrote: no write phase ends
    doorman.pushed = false
    admission.drop_claims(ticket)
    return
  end
  if doorman.upgraded then
    doorman.upgraded = false
    if queue.each('other')() then
      record.set('admit_upto', 0)
      record.set('admit_until', 0)
      return
    end
  end
  admission.admit_waiting()
end

function mutex.drop(ticket)
  if doorman.writer then mutex.drop_writer() else mutex.drop_readers({ticket}) end
end

function mutex.expire_readers()
  local barred, seen = doorman.barred_until, 0
  while doorman.readers > 0 do
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
    mutex.drop_readers(tickets)
  end
  record.set('barred_until', barred)
end

function mutex.expire()
  local writer = doorman.writer
  if writer and writer.expires and writer.expires <= now then
    local delay = record.delay_in(writer.details)
    mutex.drop_writer()
    if delay > 0 then
      record.set('barred_until', math.max(doorman.barred_until, writer.expires + delay))
    end
  elseif doorman.readers > 0 and step.soonest <= now then
    mutex.expire_readers()
  end
  queue.expire()
  if doorman.upgrader and doorman.upgrader.expires <= now then
    doorman.upgrader = nil
    step.changed = true
  end
end

-- End the live grants, for a mutex record that another program has changed or deleted.
function mutex.void(reason)
  if doorman.writer then
    record.note(doorman.last, record.holder_in(doorman.writer.details), reason)
    mutex.drop_writer()
    return
  end
  if doorman.readers > 4 then
    record.note(doorman.last, '*', reason)
  else
    for _, ticket in ipairs(record.first_readers(4)) do
      local _, details = record.details_of(ticket)
      record.note(doorman.last, record.holder_in(details), reason)
    end
  end
  mutex.drop_readers(record.first_readers(doorman.readers))
end

function mutex.reconcile()
  if record.held() and mutex_value ~= doorman.seat then
    mutex.void(mutex_value and 'stolen' or 'forced')
  end
end

-- Return the mode of a ticket's grant that expire() and reconcile() would keep, else nil.
function mutex.will_stay(ticket)
  local mode, expires = record.grant_of(ticket)
  if mutex_value ~= doorman.seat or (expires and expires <= now) then return nil end
  return mode
end

function mutex.foreign_record()
  if not mutex_value or mutex_value == doorman.seat then return nil end
  return {value = mutex_value, ticket = match(mutex_value, '^(.+),') or mutex_value}
end

-- Return whether a foreign holder keeps this mode out.
function mutex.bars(foreign, mode)
  return foreign ~= nil
end

-- Release a ticket whose record was lost and whose mutex key counts as foreign. Return the
-- foreign holder afterwards, and whether the ticket held the lock. If the readers' sorted set
-- was deleted, the first of them removes `readers`: the state still has the value and names.
function mutex.take_out(foreign, ticket, mode)
  if foreign and mode ~= 'r' and foreign.ticket == ticket then return nil, true end
  if foreign and foreign.value == step.unclaimed
    and record.text_in(call('HGET', STATE, record.reader_field(ticket))) then
    step.leaving[#step.leaving + 1], step.left[ticket] = ticket, true
    return nil, true
  end
  return foreign, false
end

-- Break the foreign mutex key with this value. Return the holder then, and the answer.
function mutex.force(foreign, value)
  if foreign and foreign.value == value then return nil, 1 end
  return foreign, 0
end
