-- The end of a step: wake clients, write the seat and the record, set their TTL.

local save = {}

-- The pushed grant, as a message tells it. The proof shows that its sender knows the ticket.
function save.pushed()
  local writer = door.writer
  local proof = redis.sha1hex(format('%s,%s,%d,%d', writer.ticket, writer.since,
    writer.expires, door.last))
  return {tonumber(writer.since), writer.expires, door.last, proof}
end

-- Wake the clients that are next; pass over those that have no subscription any more.
-- Return what an answer tells the calling client if it is to be woken itself, else nil.
function save.tell(gates, own)
  local rung
  local channel = wake or 'rwlock.wake/'
  while gates[1] do
    local deaf, somebody = {}, false
    local text, pushed = SEAT, {}
    if door.pushed then
      -- A client enters by this message, so the grant is stored before it is sent: a step
      -- that is refused in its middle must not have told of it (test_half_done.py).
      save.write(nil)
      pushed = save.pushed()
      text = SEAT .. ' ' .. format('%d,%d,%d,%s', unpack(pushed))
    end
    for _, gate in ipairs(gates) do
      if gate == own then
        rung = pushed
      elseif not match(gate, ':') then -- an entry of the published calls has no subscriber
        -- pcall: a user without the right to publish must still be able to release.
        if gate == unheard
          or redis.pcall(wake and 'SPUBLISH' or 'PUBLISH', channel .. gate, text) == 0 then
          deaf[gate], somebody = true, true
        end
      end
    end
    if not somebody then break end
    -- As if this were the next step: a seat of a ticket that has left is not kept for it.
    save.vacated = not record.held()
    if door.pushed then seat.drop_writer() end
    turn.pass_over(deaf)
    gates = turn.offer()
  end
  return rung
end

-- Return the value that the mutex key is to have, which save.write sets at the end; nil: none,
-- and the key has been deleted. A value of ours without any grant is remembered, see
-- seat.take_out.
function save.agree(foreign)
  if foreign then return foreign.value == step.unclaimed and step.unclaimed or nil end
  if not record.held() then
    if seat_value or step.outdated then save.delete_key() end
    return nil
  end
  local ticket = door.writer and door.writer.ticket or 'readers'
  local value = door.seat
  if not value or save.vacated or (match(value, '^(.+),') or value) ~= ticket then
    value = ticket .. ',' .. clock[1]
  end
  if step.regranted or step.outdated or value ~= seat_value then
    local at = record.ends()
    local there = step.outdated or seat_value
    save.was = there ~= value and there or nil
    save.sits = {value}
    if at then save.sits = {value, 'PXAT', format('%d', math.ceil(at / 1000))} end
  end
  return value
end

-- Delete the mutex key. If the server refuses that, the release is written all the same, and
-- the next step deletes the key by `was`; main.lua returns the error.
function save.delete_key()
  local answer = redis.pcall('DEL', SEAT)
  if type(answer) == 'table' then save.refusal, save.was = answer, step.outdated or seat_value end
  step.outdated = false
end

function save.never_ends()
  return record.held() and not record.ends()
end

-- The keys live a quarter longer than needed, so that their TTL is seldom set.
function save.kept_until()
  local keep = record.text_in(stored[14])
  if save.never_ends() then return 'never' end
  step.horizon = math.max(step.horizon, queue.sums.latest)
  if door.slot then step.horizon = math.max(step.horizon, door.slot.expires) end
  step.horizon = math.max(step.horizon, door.barred_until, record.ends() or 0)
  -- A key whose TTL has passed within the step would be created again, without a TTL.
  local needed = math.max((step.horizon + ARGV[1]) / 1000, now / 1000 + 1000)
  if (tonumber(keep) or 0) >= needed then return keep end
  return format('%d', math.ceil(needed + ARGV[1] / 4000))
end

function save.keep_keys(keep, changed, new_queue)
  if changed then
    for i = 2, 4 do
      if keep == 'never' then call('PERSIST', KEYS[i])
      else call('PEXPIREAT', KEYS[i], keep) end
    end
  elseif keep ~= 'never' then
    if step.new_readers then call('PEXPIREAT', READERS, keep) end
    if new_queue then call('PEXPIREAT', QUEUE, keep) end
  end
end

-- Return the tickets that leave. With its field empty a ticket is no reader's any more. Of a
-- crowd, most fields are written before the state: its readers have all expired, or are void.
function save.leavers(put)
  local gone, fields = {}, {}
  for _, ticket in ipairs(step.leaving) do
    if step.left[ticket] then -- it has not come back
      gone[#gone + 1] = ticket
      local n = #fields
      fields[n + 1], fields[n + 2] = record.reader_field(ticket), ''
      if n + 2 == 2 * CHUNK then
        call('HSET', STATE, unpack(fields))
        fields = {}
      end
    end
  end
  for i = 1, #fields, 2 do put(fields[i], '') end
  step.leaving, step.left = {}, {}
  return gone
end

local SCALARS = {last = 2, number = 3, barred_until = 7, admit_upto = 10,
  admit_until = 11, turns = 12}

-- Write what has changed. A step may do so twice: see save.tell.
function save.write(foreign)
  local value = save.agree(foreign)
  save.write_record(value)
  if save.sits then call('SET', SEAT, unpack(save.sits)) end
  save.sits, save.was, step.regranted, step.outdated = nil, nil, false, false
  if not foreign then seat_value, door.seat = value, value end
end

function save.write_record(value)
  if not step.changed and value == record.text_in(stored[4]) then
    -- That the bounds are exact again is no change, but the next step needs them.
    if queue.text() ~= (stored[6] or '') then call('HSET', STATE, 'queue', queue.text()) end
    return
  end
  local pairs_of, was_empty = step.fields, (stored[6] or '') == ''
  step.fields, step.changed = {}, false
  pairs_of[#pairs_of + 1] = 'updated'
  pairs_of[#pairs_of + 1] = now_text
  local function put(name, text)
    pairs_of[#pairs_of + 1] = name
    pairs_of[#pairs_of + 1] = text
  end
  local function differ(i, name, text)
    if text ~= (stored[i] or '') then
      put(name, text)
      stored[i] = text
    end
  end
  if stored[1] ~= '1' then
    differ(1, 'v', '1')
    put('created', now_text)
  end
  for name, i in pairs(SCALARS) do
    local number = door[name]
    if number ~= record.number_in(stored[i]) then
      differ(i, name, number ~= 0 and format('%d', number) or '')
    end
  end
  differ(4, 'seat', value or '')
  differ(9, 'endings', door.endings)
  differ(13, 'upgraded', door.upgraded and '1' or '')
  differ(15, 'pushed', door.pushed and format('%d', door.last) or '')
  if not step.unclaimed or value ~= step.unclaimed then
    differ(16, 'readers', door.readers > 0 and format('%d', door.readers) or '')
  end
  differ(17, 'was', save.was or '')
  local writer, slot = door.writer, door.slot
  if not writer then
    differ(5, 'writer', '')
  elseif writer.dirty then
    writer.dirty = nil
    differ(5, 'writer', format('%s,%s,%s,%s', writer.ticket, writer.since,
      writer.expires and format('%d', writer.expires) or 'never', writer.details))
  end
  differ(8, 'upgrader', slot and format('%d,%d,%s,%s', slot.expires,
    slot.called and 1 or 0, slot.gate, slot.ticket) or '')
  queue.write(pairs_of)
  differ(6, 'queue', queue.text())
  local keep, kept_before = save.kept_until(), stored[14]
  local changed = keep ~= kept_before
  if changed then put('keep', '') end
  local gone = save.leavers(put)
  call('HSET', STATE, unpack(pairs_of))
  record.delete_readers(gone)
  queue.written()
  save.keep_keys(keep, changed, was_empty and queue.sums.count > 0)
  if changed then
    call('HSET', STATE, 'keep', keep)
    stored[14] = keep
  end
  step.new_readers = false
end
