-- The end of a step at a semaphore: wake clients, write the mutex record and the doorman, set their
-- TTL.

-- Wake the clients that are next; skip those that have no subscription any more.
-- Return whether the calling client is to be woken itself, by its answer.
function save.wake_clients(client_ids)
  local own_wakeup = false
  while client_ids[1] do
    local unreached, any_unreached = {}, false
    for _, client_id in ipairs(client_ids) do
      if client_id == own then
        own_wakeup = true
      -- pcall: a user without the right to publish must still be able to release.
      elseif redis.pcall(wake and 'SPUBLISH' or 'PUBLISH',
        (wake or 'rwlock.wake/') .. client_id, MUTEX) == 0 then
        unreached[client_id], any_unreached = true, true
      end
    end
    if not any_unreached then break end
    queue.skip_clients(unreached)
    client_ids = permits.offer()
  end
  return own_wakeup
end

function save.limits()
  local counts = {}
  for limit, count in pairs(doorman.limits) do
    counts[#counts + 1] = format('%d:%d', limit, count)
  end
  table.sort(counts)
  return table.concat(counts, ';')
end

-- Return the fields of the state that have changed, with their values: name, value, name...
function save.fields(value, keep)
  local fields = {'updated', now_text}
  local function put(name, text)
    fields[#fields + 1] = name
    fields[#fields + 1] = text
  end
  local function differ(i, name, text)
    if text ~= (stored[i] or '') then put(name, text) end
  end
  local function digits(number)
    return number ~= 0 and format('%d', number) or ''
  end
  if stored[1] ~= '1' then
    put('v', '1')
    put('created', now_text)
  end
  differ(2, 'last', digits(doorman.last))
  differ(3, 'number', digits(doorman.number))
  differ(4, 'seat', value or '')
  differ(5, 'limits', save.limits())
  differ(7, 'barred_until', digits(doorman.barred_until))
  differ(8, 'endings', doorman.endings)
  differ(10, 'was', save.was or '')
  if keep ~= stored[9] then put('keep', '') end -- until the TTLs are set
  return fields
end

-- Write what has changed, in the order of record.lua (docs/architecture.md).
function save.write(foreign)
  local value, ends = nil, nil
  if not foreign and doorman.held > 0 then
    value, ends = doorman.seat or 'permits,' .. clock[1], record.ends()
    local there = step.outdated or mutex_value
    save.was = there ~= value and there or nil
  elseif not foreign and (mutex_value or step.outdated) then
    save.delete_key()
  end
  if not step.changed and value == record.text_in(stored[4]) then
    if queue.text() ~= (stored[6] or '') then call('HSET', STATE, 'queue', queue.text()) end
    return -- that the bounds are exact again is no change, but the next step needs them
  end
  local keep = doorman.held > 0 and not ends and 'never' or save.kept_until(stored[9], ends)
  local scores, gone, fields = {}, {}, save.fields(value, keep)
  local function put(name, text)
    fields[#fields + 1] = name
    fields[#fields + 1] = text
  end
  for ticket, permit in pairs(met) do
    if permit.gone then
      gone[#gone + 1] = ticket
      put('permit:' .. ticket, '')
    elseif permit.moved then
      scores[#scores + 1] = permit.expires and format('%d', permit.expires) or '+inf'
      scores[#scores + 1] = ticket
    end
    if permit.dirty then
      put('permit:' .. ticket, format('%d,%d,%d,%s', permit.fence, permit.limit,
        permit.since, permit.details))
    end
  end
  queue.write(fields)
  if queue.text() ~= (stored[6] or '') then put('queue', queue.text()) end
  if scores[1] then call('ZADD', PERMITS, unpack(scores)) end
  for first = 1, #fields, 2 * CHUNK do
    call('HSET', STATE, unpack(fields, first, math.min(#fields, first + 2 * CHUNK - 1)))
  end
  record.delete_permits(gone)
  queue.written()
  if keep ~= stored[9] then
    save.keep_keys(keep)
    call('HSET', STATE, 'keep', keep)
  elseif keep ~= 'never' then
    if not step.first and doorman.held > 0 then call('PEXPIREAT', PERMITS, keep) end
    if queue.sums.count > 0 and (stored[6] or '') == '' then
      call('PEXPIREAT', QUEUE, keep)
    end
  end
  if value and (step.regranted or step.outdated or value ~= mutex_value) then
    call('SET', MUTEX, value, unpack(ends
      and {'PXAT', format('%d', math.ceil(ends / 1000))} or {}))
  end
end
