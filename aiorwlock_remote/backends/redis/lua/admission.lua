-- Which queue entries are next, as in core/admission.py.

local admission = {}

-- Return the oldest writer that did not miss its claim, or nil.
function admission.first_writer()
  for entry in queue.each('other') do
    if not queue.missed_claim(entry) then return entry end
  end
end

function admission.writer_before(number)
  local first = admission.first_writer()
  return first ~= nil and first.number < number
end

function admission.writer_waits()
  return doorman.upgrader ~= nil or admission.first_writer() ~= nil
end

function admission.is_admitted(entry)
  return entry.number <= doorman.admit_upto
    and (doorman.admit_until == 0 or now < doorman.admit_until)
end

-- Return the readers that may enter before waiting writers: all, or the first alone.
function admission.admitted(first)
  local found = {}
  if doorman.admit_upto == 0 then return found end
  for entry in queue.each('r') do
    if not admission.is_admitted(entry) then break end
    if not queue.missed_claim(entry) then
      found[#found + 1] = entry
      if first then break end
    end
  end
  return found
end

function admission.may_enter(entry, policy)
  if doorman.barred_until > now then return false end
  if entry.mode == 'w' then
    if record.held() then return false end
    if policy == 'barge' then return true end
    if admission.writer_before(entry.number) then return false end
    return policy == 'writer' or not admission.admitted(true)[1]
  end
  if doorman.writer then return false end
  if policy == 'reader' or not admission.writer_waits() then return true end
  return policy == 'fair' and admission.is_admitted(entry)
end

function admission.admit_waiting()
  record.set('admit_upto', doorman.number)
  record.set('admit_until', 0)
end

function admission.settle()
  if doorman.writer or doorman.barred_until > now or admission.writer_waits() then return end
  -- Nobody has come since all that waited were admitted.
  if doorman.admit_upto == doorman.number
    and (doorman.admit_until == 0 or now < doorman.admit_until) then
    return
  end
  for entry in queue.each('r') do
    if not queue.missed_claim(entry) and not admission.is_admitted(entry) then
      admission.admit_waiting()
      return
    end
  end
end

function admission.suspend()
  if doorman.admit_until > now then record.set('admit_until', 0) end
end

-- Return the microseconds until time alone changes something for this queue entry, or -1.
function admission.retry_after(entry, foreign)
  local wait = record.wait_for_others(foreign)
  if wait then return wait end
  if record.held() then
    local at = record.ends()
    return at and math.max(0, at - now) or -1
  end
  local soon
  for _, other in ipairs(queue.called('other')) do
    if not queue.missed_claim(other) and other ~= entry then
      soon = math.min(soon or math.huge, other.claim_until - now)
    end
  end
  if doorman.admit_until > now and admission.admitted(true)[1] then
    soon = math.min(soon or math.huge, doorman.admit_until - now)
  end
  return soon and math.max(0, soon) or -1
end

function admission.open_window()
  local woken = {}
  if doorman.admit_until ~= 0 then return woken end
  local called, window = admission.admitted(), 0
  if not called[1] then return woken end
  for _, entry in ipairs(called) do window = math.max(window, entry.window) end
  for i, entry in ipairs(called) do
    record.alter(entry, 'claim_until', now + window)
    woken[i] = entry.client_id
  end
  record.set('admit_until', now + window)
  return woken
end

-- The lock is held: the clients that were woken before have not missed their claim.
function admission.unoffered(kind)
  local pushed = doorman.pushed and doorman.writer.ticket
  for _, entry in ipairs(queue.called(kind)) do
    if not queue.missed_claim(entry) and entry.ticket ~= pushed then
      record.alter(entry, 'claim_until', nil)
    end
  end
end

function admission.call_upgrader()
  local upgrader = doorman.upgrader
  if not upgrader or upgrader.called or doorman.readers > 1 then return {} end
  upgrader.called = true
  step.changed = true
  return {upgrader.client_id}
end

-- Grant an entry's claim for its window; the entry stays.
function admission.push(entry)
  local ends = now + math.min(entry.window, entry.lease)
  record.alter(entry, 'claim_until', ends)
  record.set('last', math.max(doorman.last + 1, now))
  record.set('turns', doorman.turns + 1)
  doorman.upgraded, doorman.pushed = false, true
  record.put_writer(entry.ticket, ends, entry.holder .. ',0,' .. entry.who)
end

function admission.offer_to_writer()
  local entry = admission.first_writer()
  if not entry or entry.claim_until then return {} end
  if entry.ticket == '' or doorman.turns >= MAX_LOCAL_TURNS then
    record.alter(entry, 'claim_until', now + entry.window)
  else
    admission.push(entry)
  end
  return {entry.client_id}
end

-- Reserve the free lock for the next entries; return the clients to be woken.
function admission.offer()
  if doorman.writer or doorman.barred_until > now then
    admission.unoffered('r')
    admission.unoffered('other')
    return {}
  end
  admission.settle()
  local woken = admission.open_window()
  if record.held() then
    admission.unoffered('other')
    if not admission.admitted(true)[1] then return admission.call_upgrader() end
    return woken
  end
  if not admission.admitted(true)[1] then return admission.offer_to_writer() end
  return woken
end

-- The ticket is not to be pushed (again). It is in the entry of its own client, or in one that
-- was called with it.
function admission.drop_claims(ticket, client_id)
  local entries = queue.called('other')
  entries[#entries + 1] = client_id and queue.entry_of(client_id, 'w')
  for _, entry in ipairs(entries) do
    if entry.ticket == ticket then
      record.alter(entry, 'ticket', '')
      record.alter(entry, 'lease', 0)
    end
  end
end

-- The holder of this ticket uses its grant. If it was pushed, it is one like any other now,
-- and its entry is that of its client's other tasks.
function admission.confirm(ticket)
  if not doorman.pushed or doorman.writer.ticket ~= ticket then return end
  record.set('pushed', false)
  record.set('admit_upto', 0)
  record.set('admit_until', 0)
  for _, entry in ipairs(queue.called('other')) do
    if entry.ticket == ticket and entry.waiting > 1 then
      record.alter(entry, 'waiting', entry.waiting - 1)
      record.alter(entry, 'claim_until', nil)
      record.alter(entry, 'ticket', '')
      record.alter(entry, 'lease', 0)
    elseif entry.ticket == ticket then
      queue.drop(entry)
    end
  end
end
