-- The end of a step at a semaphore: wake clients, write the seat and the record, set their
-- TTL.

local save = {}

-- Wake the clients that are next; pass over those that have no subscription any more.
-- Return whether the calling client is to be woken itself: its answer tells it.
function save.tell(gates)
  local rung = false
  while gates[1] do
    local deaf, somebody = {}, false
    for _, gate in ipairs(gates) do
      if gate == own then
        rung = true
      -- pcall: a user without the right to publish must still be able to release.
      elseif redis.pcall(wake and 'SPUBLISH' or 'PUBLISH',
        (wake or 'rwlock.wake/') .. gate, SEAT) == 0 then
        deaf[gate], somebody = true, true
      end
    end
    if not somebody then break end
    permits.pass_over(deaf)
    gates = permits.offer()
  end
  return rung
end

-- The keys live a quarter longer than needed, so that their TTL is seldom set.
function save.kept_until(ends)
  local keep = record.text_in(stored[9])
  if door.held > 0 and not ends then return 'never' end
  step.horizon = math.max(step.horizon, queue.sums.latest, door.barred_until, ends or 0)
  -- A key whose TTL has passed within the step would be created again, without a TTL.
  local needed = math.max((step.horizon + ARGV[1]) / 1000, now / 1000 + 1000)
  if (tonumber(keep) or 0) >= needed then return keep end
  return format('%d', math.ceil(needed + ARGV[1] / 4000))
end

function save.keep_keys(keep)
  for i = 2, 4 do
    if keep == 'never' then call('PERSIST', KEYS[i])
    else call('PEXPIREAT', KEYS[i], keep) end
  end
end

function save.limits()
  local counts = {}
  for limit, count in pairs(door.limits) do
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
  differ(2, 'last', digits(door.last))
  differ(3, 'number', digits(door.number))
  differ(4, 'seat', value or '')
  differ(5, 'limits', save.limits())
  differ(7, 'barred_until', digits(door.barred_until))
  differ(8, 'endings', door.endings)
  differ(10, 'was', save.was or '')
  if keep ~= stored[9] then put('keep', '') end -- until the TTLs are set
  return fields
end

-- Delete the mutex key; see save.lua.
function save.delete_key()
  local answer = redis.pcall('DEL', SEAT)
  if type(answer) == 'table' then save.refusal, save.was = answer, step.outdated or seat_value end
end

-- Write what has changed, in the order of record.lua (docs/architecture.md).
function save.write(foreign)
  local value, ends = nil, nil
  if not foreign and door.held > 0 then
    value, ends = door.seat or 'permits,' .. clock[1], record.ends()
    local there = step.outdated or seat_value
    save.was = there ~= value and there or nil
  elseif not foreign and (seat_value or step.outdated) then
    save.delete_key()
  end
  if not step.changed and value == record.text_in(stored[4]) then
    if queue.text() ~= (stored[6] or '') then call('HSET', STATE, 'queue', queue.text()) end
    return -- that the bounds are exact again is no change, but the next step needs them
  end
  local keep = save.kept_until(ends)
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
    if not step.first and door.held > 0 then call('PEXPIREAT', PERMITS, keep) end
    if queue.sums.count > 0 and (stored[6] or '') == '' then
      call('PEXPIREAT', QUEUE, keep)
    end
  end
  if value and (step.regranted or step.outdated or value ~= seat_value) then
    call('SET', SEAT, value, unpack(ends
      and {'PXAT', format('%d', math.ceil(ends / 1000))} or {}))
  end
end
