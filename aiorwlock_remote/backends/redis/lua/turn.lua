-- Whose turn it is: core/turn.py.

local function late(place)
  return place.claim_until and place.claim_until <= now
end

local function writer_before(number)
  for _, place in ipairs(queue) do
    if place.number >= number then return false end
    if place.mode == 'w' and not late(place) then return true end
  end
  return false
end

local function writer_waits()
  return door.slot ~= nil or writer_before(math.huge)
end

local function is_admitted(place)
  return place.number <= door.admit_upto
    and (door.admit_until == 0 or now < door.admit_until)
end

local function admitted()
  local found = {}
  for _, place in ipairs(queue) do
    if place.mode == 'r' and not late(place) and is_admitted(place) then
      found[#found + 1] = place
    end
  end
  return found
end

local function may_enter(place, policy)
  if door.barred_until > now then return false end
  if place.mode == 'w' then
    if held() then return false end
    if policy == 'barge' then return true end
    if writer_before(place.number) then return false end
    return policy == 'writer' or not admitted()[1]
  end
  if door.writer then return false end
  if policy == 'reader' or not writer_waits() then return true end
  return policy == 'fair' and is_admitted(place)
end

local function admit_waiting()
  set('admit_upto', door.number)
  set('admit_until', 0)
end

local function settle()
  if door.writer or door.barred_until > now or writer_waits() then return end
  for _, place in ipairs(queue) do
    if not late(place) and not is_admitted(place) then
      admit_waiting()
      return
    end
  end
end

-- Microseconds until something changes for this place with nobody's help, or -1.
local function retry_after(place, foreign)
  if foreign then
    local at = call('PEXPIRETIME', SEAT)
    return at < 0 and -1 or math.max(0, at * 1000 - now)
  end
  if door.barred_until > now then return door.barred_until - now end
  if held() then
    local at = ends()
    return at and math.max(0, at - now) or -1
  end
  local soon
  for _, other in ipairs(queue) do
    if other.mode == 'w' and not late(other) and other ~= place and other.claim_until
    then
      soon = math.min(soon or math.huge, other.claim_until - now)
    end
  end
  if door.admit_until > now and admitted()[1] then
    soon = math.min(soon or math.huge, door.admit_until - now)
  end
  return soon and math.max(0, soon) or -1
end

local function open_window()
  local woken = {}
  if door.admit_until ~= 0 then return woken end
  local called, window = admitted(), 0
  if not called[1] then return woken end
  for _, place in ipairs(called) do window = math.max(window, place.window) end
  for i, place in ipairs(called) do
    alter(place, 'claim_until', now + window)
    woken[i] = place.gate
  end
  set('admit_until', now + window)
  return woken
end

-- The resource is taken: whoever it was offered to is not late for that.
local function unoffered(only)
  for _, place in ipairs(queue) do
    if (not only or place.mode == only) and not late(place) then
      alter(place, 'claim_until', nil)
    end
  end
end

local function call_upgrader()
  local slot = door.slot
  if not slot or slot.called or door.readers > 1 then return {} end
  slot.called = true
  changed = true
  return {slot.gate}
end

local function offer_to_writer()
  for _, place in ipairs(queue) do
    if place.mode == 'w' and not late(place) then
      if place.claim_until then return {} end
      alter(place, 'claim_until', now + place.window)
      return {place.gate}
    end
  end
  return {}
end

-- Reserve what stands free for whose turn it is; the gates to be woken.
local function offer()
  if door.writer or door.barred_until > now then
    unoffered()
    return {}
  end
  settle()
  local woken = open_window()
  if held() then
    unoffered('w')
    if not admitted()[1] then return call_upgrader() end
    return woken
  end
  if not admitted()[1] then return offer_to_writer() end
  return woken
end

local function pass_over(gates)
  for _, place in ipairs(queue) do
    if gates[place.gate] and place.claim_until and not late(place) then
      alter(place, 'claim_until', now)
    end
  end
end
