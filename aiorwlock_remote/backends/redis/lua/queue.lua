-- The queue: one entry for each waiting client and mode. Entries are read in the order
-- of their numbers, readers' apart from others', and no more of them than a step needs.
--
-- QUEUE    sorted set: <mode>:<client_id> by the number of the entry; a reader's number is negative
--          here, so that the first entry of either kind is found at once
-- state    place:<mode>:<client_id>: number,since,expires,window,waiting,claim_until, and what
--          the script's own file of the record adds
--          queue: the sums of SUMS, with commas between; empty if nobody waits
--
-- A member whose field is absent or empty, or a field without its member, is no entry: a step
-- that was stopped has left it. The fields and the sums are written together, members come
-- before and leave after them (see record.lua). If the sums differ from the sorted set, a step
-- reads the whole queue, and removes what was left.

local queue = {
  known = {}, -- entries by field
  order = {r = {}, other = {}}, -- entries by number, as far as they were read
  read_all = {r = false, other = false},
  tail = {r = {}, other = {}}, -- entries that this step adds
  touched = {}, -- entries to be written or removed
  strays = {}, -- members to be removed: they have no field
  leftovers = {}, -- fields to be removed: they have no member
}
-- How many entries, and waiting tasks; how many readers' entries have been called, and how many
-- others (also those that missed their claim); no entry expires before, none after; the least
-- and the greatest limit (of a semaphore). The four last are bounds: they are exact after `expire`.
local SUMS = {'count', 'waiting', 'r', 'other', 'soonest', 'latest', 'least', 'most'}
local FEW = 8 -- so many entries are all read, and checked, before the first write
local MANY = 1000 -- arguments of one call

function queue.kind(entry)
  return entry.mode == 'r' and 'r' or 'other'
end

-- Return whether an entry was offered the resource, but its claim window is over.
function queue.missed_claim(entry)
  return entry.claim_until and entry.claim_until <= now
end

function queue.clear()
  queue.sums = {count = 0, waiting = 0, r = 0, other = 0, soonest = MOST, latest = 0,
    least = MOST, most = 0}
end

function queue.add(entry)
  local sums, kind = queue.sums, queue.kind(entry)
  sums.count, sums.waiting = sums.count + 1, sums.waiting + entry.waiting
  if entry.claim_until then sums[kind] = sums[kind] + 1 end
  sums.soonest = math.min(sums.soonest, entry.expires)
  sums.latest = math.max(sums.latest, entry.expires)
  sums.least = math.min(sums.least, entry.limit)
  sums.most = math.max(sums.most, entry.limit)
end

function queue.subtract(entry)
  local sums, kind = queue.sums, queue.kind(entry)
  sums.count, sums.waiting = sums.count - 1, sums.waiting - entry.waiting
  if entry.claim_until then sums[kind] = sums[kind] - 1 end
  if sums.count == 0 then queue.clear() end
end

function queue.text()
  if queue.sums.count == 0 then return '' end
  local digits = {}
  for i, name in ipairs(SUMS) do digits[i] = format('%d', queue.sums[name]) end
  return table.concat(digits, ',')
end

function queue.entry(field, text)
  local number, since, expires, window, waiting, claim, rest = match(text,
    '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d*),(.*)$')
  if not number or not match(field, '^[rwp]:.') or not record.fits(number)
    or not record.fits(since) or not record.fits(expires) or not record.fits(window)
    or not record.fits(waiting) or not (claim == '' or record.fits(claim)) then
    record.damaged(STATE, 'place:' .. field)
  end
  local entry = {field = field, mode = sub(field, 1, 1), client_id = sub(field, 3),
    number = tonumber(number), since = since, expires = tonumber(expires),
    window = tonumber(window), waiting = tonumber(waiting), claim_until = tonumber(claim),
    limit = 0, stored = true}
  record.read_entry(entry, rest)
  queue.known[field] = entry
  return entry
end

-- Read more entries of a kind; return whether there may be more than before.
function queue.read(kind, count)
  if queue.read_all[kind] then return false end
  local order, flat, fields = queue.order[kind], nil, {}
  local last = order[1] and order[#order].number or 0
  if kind == 'r' then
    flat = call('ZRANGE', QUEUE, format('(%d', -last), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0,
      count, 'WITHSCORES')
  else
    flat = call('ZRANGE', QUEUE, format('(%d', last), '+inf', 'BYSCORE', 'LIMIT', 0, count,
      'WITHSCORES')
  end
  queue.read_all[kind] = #flat < 2 * count
  if not flat[1] then return false end
  for i = 1, #flat, 2 do fields[#fields + 1] = 'place:' .. flat[i] end
  for i, text in ipairs(call('HMGET', STATE, unpack(fields))) do
    local member, number = flat[2 * i - 1], math.abs(tonumber(flat[2 * i]))
    local entry = queue.known[member]
    if not entry and record.text_in(text) then
      entry = queue.entry(member, text)
      if entry.number ~= number then record.damaged(QUEUE, member) end
    elseif not entry then
      queue.strays[#queue.strays + 1] = member
      step.changed = true
    end
    -- One that has left and come back in this step is in the tail.
    if not (entry and entry.stored) then entry = {gone = true, number = number} end
    order[#order + 1] = entry
  end
  return true
end

function queue.nth(kind, i)
  while not queue.order[kind][i] and queue.read(kind, math.min(MANY, math.max(FEW, i))) do end
  return queue.order[kind][i] or queue.tail[kind][i - #queue.order[kind]]
end

-- Iterate over the entries of a kind, in the order of their numbers.
function queue.each(kind)
  local i = 0
  return function()
    local entry
    repeat
      i = i + 1
      entry = queue.nth(kind, i)
    until not (entry and entry.gone)
    return entry
  end
end

-- Return the entries of a kind that were offered the resource, also if they missed their claim.
function queue.called(kind)
  local found, count = {}, queue.sums[kind]
  if count == 0 then return found end
  for entry in queue.each(kind) do
    if entry.claim_until then found[#found + 1] = entry end
    if #found == count then break end
  end
  return found
end

function queue.entry_of(client_id, mode)
  local field = mode .. ':' .. client_id
  local entry = queue.known[field]
  if entry == nil and not (queue.read_all.r and queue.read_all.other) then
    local text = record.text_in(call('HGET', STATE, 'place:' .. field))
    entry = text and queue.entry(field, text)
  end
  return entry and not entry.gone and entry or nil
end

-- Return how many entries are before this one.
function queue.ahead(entry)
  local ahead = call('ZCOUNT', QUEUE, 1, format('(%d', entry.number))
    + call('ZCOUNT', QUEUE, format('(%d', -entry.number), -1)
  for _, other in ipairs(queue.touched) do -- not written yet
    if other.number < entry.number and other.stored == other.gone then
      ahead = ahead + (other.gone and -1 or 1)
    end
  end
  return ahead
end

function queue.touch(entry)
  if not entry.touched then queue.touched[#queue.touched + 1] = entry end
  entry.touched, step.changed = true, true
end

function queue.drop(entry)
  entry.gone = true
  queue.subtract(entry)
  queue.touch(entry)
end

-- Add an entry at the tail, also one that has just left.
function queue.append(entry, number)
  local new = {}
  for name, value in pairs(entry) do new[name] = value end
  new.number, new.stored, new.gone, new.touched = number, false, false, false
  queue.known[new.field] = new
  local tail = queue.tail[queue.kind(new)]
  tail[#tail + 1] = new
  queue.add(new)
  queue.touch(new)
  record.set('number', number)
end

function queue.all()
  local found = {}
  for kind in pairs(queue.order) do
    for entry in queue.each(kind) do found[#found + 1] = entry end
  end
  return found
end

function queue.expire()
  if queue.sums.soonest > now then return end
  for _, entry in ipairs(queue.all()) do
    if entry.expires <= now then queue.drop(entry) end
  end
  queue.tighten()
end

function queue.tighten() -- make the sums exact
  queue.clear()
  for _, entry in ipairs(queue.all()) do queue.add(entry) end
end

-- Read the whole queue, and find what a step that failed has left.
function queue.recount()
  local flat, there = call('HGETALL', STATE), {}
  for _, entry in ipairs(queue.all()) do there['place:' .. entry.field] = true end
  for i = 1, #flat, 2 do
    if sub(flat[i], 1, 6) == 'place:' and not there[flat[i]] then
      queue.leftovers[#queue.leftovers + 1] = flat[i]
    end
  end
  queue.tighten()
  step.changed, stored[KEEP] = true, ''
end

function queue.begin()
  local members = typed('sorted set', 'ZCARD', QUEUE)
  queue.clear()
  local i, text = 0, record.text_in(stored[6])
  for digits in string.gmatch(text or '', '[^,]+') do
    i = i + 1
    if not SUMS[i] or not record.fits(digits) then record.damaged(STATE, 'queue') end
    queue.sums[SUMS[i]] = tonumber(digits)
  end
  if text and i ~= #SUMS then record.damaged(STATE, 'queue') end
  if members == 0 then queue.read_all = {r = true, other = true} end
  -- The first of each kind are checked, too, before the first write.
  local count = members <= FEW and FEW + 1 or 1
  queue.read('r', count)
  queue.read('other', count)
  if members ~= queue.sums.count then queue.recount() end
end

-- Write the members of new entries, and add to `pairs_of` (name, value, name...) what the state
-- is to have.
function queue.write(pairs_of)
  local numbers = {}
  if queue.strays[1] then queue.tighten() end
  for _, entry in ipairs(queue.touched) do
    local text
    if not entry.gone then
      if not entry.stored then
        numbers[#numbers + 1] = format('%d', entry.mode == 'r' and -entry.number
          or entry.number)
        numbers[#numbers + 1] = entry.field
      end
      text = format('%d,%s,%d,%d,%d,%s,%s', entry.number, entry.since, entry.expires,
        entry.window, entry.waiting, entry.claim_until and format('%d', entry.claim_until) or '',
        record.rest_of(entry))
    elseif entry.stored and queue.known[entry.field].gone then
      text = ''
      queue.leftovers[#queue.leftovers + 1] = 'place:' .. entry.field
      queue.strays[#queue.strays + 1] = entry.field
    end
    if text then
      pairs_of[#pairs_of + 1] = 'place:' .. entry.field
      pairs_of[#pairs_of + 1] = text
    end
  end
  if numbers[1] then call('ZADD', QUEUE, unpack(numbers)) end
end

function queue.delete(command, key, items)
  for first = 1, #items, MANY do
    call(command, key, unpack(items, first, math.min(#items, first + MANY - 1)))
  end
end

-- Remove what is left of the entries that have gone. Later writes of the same step begin anew.
function queue.written()
  queue.delete('HDEL', STATE, queue.leftovers)
  queue.delete('ZREM', QUEUE, queue.strays)
  for _, entry in ipairs(queue.touched) do
    entry.touched, entry.stored = false, not entry.gone
  end
  queue.touched, queue.strays, queue.leftovers = {}, {}, {}
  for kind, all in pairs(queue.read_all) do
    if not all then queue.tail[kind] = {} end -- they are read from the sorted set
  end
end

queue.begin()
