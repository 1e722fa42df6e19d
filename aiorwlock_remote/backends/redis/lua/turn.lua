-- Which queue entries are next, as in core/admission.py.

local turn = {}

function turn.late(place)
  return place.claim_until and place.claim_until <= now
end

function turn.writer_before(number)
  for _, place in ipairs(queue) do
    if place.number >= number then return false end
    if place.mode == 'w' and not turn.late(place) then return true end
  end
  return false
end

function turn.writer_waits()
  return door.slot ~= nil or turn.writer_before(math.huge)
end

function turn.is_admitted(place)
  return place.number <= door.admit_upto
    and (door.admit_until == 0 or now < door.admit_until)
end

function turn.admitted()
  local found = {}
  for _, place in ipairs(queue) do
    if place.mode == 'r' and not turn.late(place) and turn.is_admitted(place) then
      found[#found + 1] = place
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
    return policy == 'writer' or not turn.admitted()[1]
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
  for _, place in ipairs(queue) do
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
  for _, other in ipairs(queue) do
    if other.mode == 'w' and not turn.late(other) and other ~= place and other.claim_until
    then
      soon = math.min(soon or math.huge, other.claim_until - now)
    end
  end
  if door.admit_until > now and turn.admitted()[1] then
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
function turn.unoffered(only)
  local pushed = door.pushed and door.writer.ticket
  for _, place in ipairs(queue) do
    if (not only or place.mode == only) and not turn.late(place) and place.ticket ~= pushed
    then
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
  for _, place in ipairs(queue) do
    if place.mode == 'w' and not turn.late(place) then
      if place.claim_until then return {} end
      if place.ticket == '' or door.turns >= SEAT_TURNS then
        record.alter(place, 'claim_until', now + place.window)
      else
        turn.push(place)
      end
      return {place.gate}
    end
  end
  return {}
end

-- Reserve the free lock for the next entries; return the clients to be woken.
function turn.offer()
  if door.writer or door.barred_until > now then
    turn.unoffered()
    return {}
  end
  turn.settle()
  local woken = turn.open_window()
  if record.held() then
    turn.unoffered('w')
    if not turn.admitted()[1] then return turn.call_upgrader() end
    return woken
  end
  if not turn.admitted()[1] then return turn.offer_to_writer() end
  return woken
end

function turn.pass_over(gates)
  for _, place in ipairs(queue) do
    if gates[place.gate] and place.claim_until and not turn.late(place) then
      record.alter(place, 'claim_until', now)
    end
  end
end
