-- The end of a step: wake clients, write the mutex record and the doorman, set their TTL.

-- The pushed grant, as a message reports it. The proof shows that its sender knows the ticket.
function save.pushed()
  local writer = doorman.writer
  local proof = redis.sha1hex(format('%s,%s,%d,%d', writer.ticket, writer.since,
    writer.expires, doorman.last))
  return {tonumber(writer.since), writer.expires, doorman.last, proof}
end

-- Wake the clients that are next; skip those that have no subscription any more.
-- Return what an answer reports to the calling client if it is to be woken itself, else nil.
function save.wake_clients(client_ids, own)
  local own_wakeup
  local channel = wake or 'rwlock.wake/'
  while client_ids[1] do
    local unreached, any_unreached = {}, false
    local text, pushed = MUTEX, {}
    if doorman.pushed then
      -- A client enters by this message, so the grant is stored before it is sent: a step
      -- that is refused in its middle must not have announced it (test_missing_rights.py).
      save.write(nil)
      pushed = save.pushed()
      text = MUTEX .. ' ' .. format('%d,%d,%d,%s', unpack(pushed))
    end
    for _, client_id in ipairs(client_ids) do
      if client_id == own then
        own_wakeup = pushed
      elseif not match(client_id, ':') then -- an entry of the published calls has no subscriber
        -- pcall: a user without the right to publish must still be able to release.
        if client_id == unreachable
          or redis.pcall(wake and 'SPUBLISH' or 'PUBLISH', channel .. client_id, text) == 0 then
          unreached[client_id], any_unreached = true, true
        end
      end
    end
    if not any_unreached then break end
    -- As if this were the next step: the mutex record of a ticket that has left is not kept for it.
    save.vacated = not record.held()
    if doorman.pushed then mutex.drop_writer() end
    queue.skip_clients(unreached)
    client_ids = admission.offer()
  end
  return own_wakeup
end

-- Return the value that the mutex key is to have, which save.write sets at the end; nil: none,
-- and the key has been deleted. A value of ours without any grant is remembered, see
-- mutex.take_out.
function save.sync_mutex(foreign)
  if foreign then return foreign.value == step.unclaimed and step.unclaimed or nil end
  if not record.held() then
    if mutex_value or step.outdated then save.delete_key() end
    return nil
  end
  local ticket = doorman.writer and doorman.writer.ticket or 'readers'
  local value = doorman.seat
  if not value or save.vacated or (match(value, '^(.+),') or value) ~= ticket then
    value = ticket .. ',' .. clock[1]
  end
  if step.regranted or step.outdated or value ~= mutex_value then
    local at = record.ends()
    local there = step.outdated or mutex_value
    save.was = there ~= value and there or nil
    save.mutex_args = {value}
    if at then save.mutex_args = {value, 'PXAT', format('%d', math.ceil(at / 1000))} end
  end
  return value
end

function save.never_ends()
  return record.held() and not record.ends()
end

function save.new_keep()
  if save.never_ends() then return 'never' end
  if doorman.upgrader then step.horizon = math.max(step.horizon, doorman.upgrader.expires) end
  return save.kept_until(stored[14], record.ends())
end

function save.set_ttls(keep, changed, new_queue)
  if changed then
    save.keep_keys(keep)
  elseif keep ~= 'never' then
    if step.new_readers then call('PEXPIREAT', READERS, keep) end
    if new_queue then call('PEXPIREAT', QUEUE, keep) end
  end
end

-- Return the tickets that leave. With its field empty a ticket is no reader's any more. Of a
-- many, most fields are written before the state: its readers have all expired, or are void.
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

-- Write what has changed. A step may do so twice: see save.wake_clients.
function save.write(foreign)
  local value = save.sync_mutex(foreign)
  save.write_record(value)
  if save.mutex_args then call('SET', MUTEX, unpack(save.mutex_args)) end
  save.mutex_args, save.was, step.regranted, step.outdated = nil, nil, false, false
  if not foreign then mutex_value, doorman.seat = value, value end
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
    local number = doorman[name]
    if number ~= record.number_in(stored[i]) then
      differ(i, name, number ~= 0 and format('%d', number) or '')
    end
  end
  differ(4, 'seat', value or '')
  differ(9, 'endings', doorman.endings)
  differ(13, 'upgraded', doorman.upgraded and '1' or '')
  differ(15, 'pushed', doorman.pushed and format('%d', doorman.last) or '')
  if not step.unclaimed or value ~= step.unclaimed then
    differ(16, 'readers', doorman.readers > 0 and format('%d', doorman.readers) or '')
  end
  differ(17, 'was', save.was or '')
  differ(18, 'plain', '')
  local writer, upgrader = doorman.writer, doorman.upgrader
  if not writer then
    differ(5, 'writer', '')
  elseif writer.dirty then
    writer.dirty = nil
    differ(5, 'writer', format('%s,%s,%s,%s', writer.ticket, writer.since,
      writer.expires and format('%d', writer.expires) or 'never', writer.details))
  end
  differ(8, 'upgrader', upgrader and format('%d,%d,%s,%s', upgrader.expires,
    upgrader.called and 1 or 0, upgrader.client_id, upgrader.ticket) or '')
  queue.write(pairs_of)
  differ(6, 'queue', queue.text())
  local keep, kept_before = save.new_keep(), stored[14]
  local changed = keep ~= kept_before
  if changed then put('keep', '') end
  local gone = save.leavers(put)
  call('HSET', STATE, unpack(pairs_of))
  record.delete_readers(gone)
  queue.written()
  save.set_ttls(keep, changed, was_empty and queue.sums.count > 0)
  if changed then
    call('HSET', STATE, 'keep', keep)
    stored[14] = keep
  end
  step.new_readers = false
end
