-- Which queue entries are next, as in core/admission.py.

local turn = {}

function turn.late(place)
  return place.claim_until and place.claim_until <= now
end

-- Return the oldest writer that did not miss its claim, or nil.
function turn.first_writer()
  for place in queue.each('other') do
    if not turn.late(place) then return place end
  end
end

function turn.writer_before(number)
  local first = turn.first_writer()
  return first ~= nil and first.number < number
end

function turn.writer_waits()
  return door.slot ~= nil or turn.first_writer() ~= nil
end

function turn.is_admitted(place)
  return place.number <= door.admit_upto
    and (door.admit_until == 0 or now < door.admit_until)
end

-- Return the readers that may enter before waiting writers: all, or the first alone.
function turn.admitted(first)
  local found = {}
  if door.admit_upto == 0 then return found end
  for place in queue.each('r') do
    if not turn.is_admitted(place) then break end
    if not turn.late(place) then
      found[#found + 1] = place
      if first then break end
    end
  end
  return found
end

function turn.may_enter(place, policy)
  if door.barred_until > now then return false end
  if place.mode == 'w' then
    if record.held() then return false end
    if policy == 'barge' then return true end
    if turn.writer_before(place.number) then return false end
    return policy == 'writer' or not turn.admitted(true)[1]
  end
  if door.writer then return false end
  if policy == 'reader' or not turn.writer_waits() then return true end
  return policy == 'fair' and turn.is_admitted(place)
end

function turn.admit_waiting()
  record.set('admit_upto', door.number)
  record.set('admit_until', 0)
end

function turn.settle()
  if door.writer or door.barred_until > now or turn.writer_waits() then return end
  -- Nobody has come since all that waited were admitted.
  if door.admit_upto == door.number and (door.admit_until == 0 or now < door.admit_until) then
    return
  end
  for place in queue.each('r') do
    if not turn.late(place) and not turn.is_admitted(place) then
      turn.admit_waiting()
      return
    end
  end
end

function turn.suspend()
  if door.admit_until > now then record.set('admit_until', 0) end
end

-- Return the microseconds until time alone changes something for this queue entry, or -1.
function turn.retry_after(place, foreign)
  if foreign then
    local at = call('PEXPIRETIME', SEAT)
    return at < 0 and -1 or math.max(0, at * 1000 - now)
  end
  if door.barred_until > now then return door.barred_until - now end
  if record.held() then
    local at = record.ends()
    return at and math.max(0, at - now) or -1
  end
  local soon
  for _, other in ipairs(queue.called('other')) do
    if not turn.late(other) and other ~= place then
      soon = math.min(soon or math.huge, other.claim_until - now)
    end
  end
  if door.admit_until > now and turn.admitted(true)[1] then
    soon = math.min(soon or math.huge, door.admit_until - now)
  end
  return soon and math.max(0, soon) or -1
end

function turn.open_window()
  local woken = {}
  if door.admit_until ~= 0 then return woken end
  local called, window = turn.admitted(), 0
  if not called[1] then return woken end
  for _, place in ipairs(called) do window = math.max(window, place.window) end
  for i, place in ipairs(called) do
    record.alter(place, 'claim_until', now + window)
    woken[i] = place.gate
  end
  record.set('admit_until', now + window)
  return woken
end

-- The lock is held: the clients that were woken before have not missed their claim.
function turn.unoffered(kind)
  local pushed = door.pushed and door.writer.ticket
  for _, place in ipairs(queue.called(kind)) do
    if not turn.late(place) and place.ticket ~= pushed then
      record.alter(place, 'claim_until', nil)
    end
  end
end

function turn.call_upgrader()
  local slot = door.slot
  if not slot or slot.called or door.readers > 1 then return {} end
  slot.called = true
  step.changed = true
  return {slot.gate}
end

-- Grant a place's claim for its window; the place stays.
function turn.push(place)
  local ends = now + math.min(place.window, place.lease)
  record.alter(place, 'claim_until', ends)
  record.set('last', math.max(door.last + 1, now))
  record.set('turns', door.turns + 1)
  door.upgraded, door.pushed = false, true
  record.put_writer(place.ticket, ends, place.holder .. ',0,' .. place.who)
end

function turn.offer_to_writer()
  local place = turn.first_writer()
  if not place or place.claim_until then return {} end
  if place.ticket == '' or door.turns >= SEAT_TURNS then
    record.alter(place, 'claim_until', now + place.window)
  else
    turn.push(place)
  end
  return {place.gate}
end

-- Reserve the free lock for the next entries; return the clients to be woken.
function turn.offer()
  if door.writer or door.barred_until > now then
    turn.unoffered('r')
    turn.unoffered('other')
    return {}
  end
  turn.settle()
  local woken = turn.open_window()
  if record.held() then
    turn.unoffered('other')
    if not turn.admitted(true)[1] then return turn.call_upgrader() end
    return woken
  end
  if not turn.admitted(true)[1] then return turn.offer_to_writer() end
  return woken
end

function turn.pass_over(gates)
  for kind in pairs(queue.order) do
    for _, place in ipairs(queue.called(kind)) do
      if gates[place.gate] and not turn.late(place) then
        record.alter(place, 'claim_until', now)
      end
    end
  end
end

-- The ticket is not to be pushed (again). It is in the place of its own client, or in one that
-- was called with it.
function turn.drop_claims(ticket, gate)
  local places = queue.called('other')
  places[#places + 1] = gate and queue.place_of(gate, 'w')
  for _, place in ipairs(places) do
    if place.ticket == ticket then
      record.alter(place, 'ticket', '')
      record.alter(place, 'lease', 0)
    end
  end
end

-- The holder of this ticket uses its grant. If it was pushed, it is one like any other now,
-- and its place is that of its client's other tasks.
function turn.confirm(ticket)
  if not door.pushed or door.writer.ticket ~= ticket then return end
  record.set('pushed', false)
  record.set('admit_upto', 0)
  record.set('admit_until', 0)
  for _, place in ipairs(queue.called('other')) do
    if place.ticket == ticket and place.waiting > 1 then
      record.alter(place, 'waiting', place.waiting - 1)
      record.alter(place, 'claim_until', nil)
      record.alter(place, 'ticket', '')
      record.alter(place, 'lease', 0)
    elseif place.ticket == ticket then
      queue.drop(place)
    end
  end
end
