-- Entering: core/entering.py.

local WAITS = {} -- an answer that is known when the step is over

local function live(placed, items)
  return {0, now, placed and 1 or 0, door.last, unpack(items)}
end

-- What a grant is told as: ticket, since, expiry or -1, details.
local function told(ticket)
  local _, expires = grant_of(ticket)
  local since, details = details_of(ticket)
  return {ticket, tonumber(since), expires or -1, details}
end

local function why_not(ask, foreign)
  if foreign then return 'held' end
  if door.barred_until > now then return 'barred' end
  local shared = ask.mode == 'r' and not door.writer
  return held() and not shared and 'held' or 'ahead'
end

local function refused(why, wait, foreign)
  return {-2, why, wait or -1, unpack(describe(foreign))}
end

local function refresh(place, ask)
  local window = math.max(place.window, ask.window)
  if late(place) then window = math.min(2 * window, ask.place_life) end
  alter(place, 'expires', now + ask.place_life)
  alter(place, 'window', window)
  alter(place, 'waiting', ask.waiting)
  alter(place, 'claim_until', nil)
  alter(place, 'who', ask.who)
end

local function newcomer(ask)
  return {field = ask.mode .. ':' .. ask.gate, mode = ask.mode, gate = ask.gate,
    number = door.number + 1, since = format('%.0f', now), waiting = ask.waiting,
    expires = now + ask.place_life, window = ask.window, who = ask.who, dirty = true}
end

local function append(place, number)
  place.number = number
  place.dirty = true
  queue[#queue + 1] = place
  set('number', number)
end

local function enter(ask, place, position, turns, known)
  local joins = held()
  local fence = joins and door.last or math.max(door.last + 1, now)
  set('last', fence)
  set('turns', joins and door.turns or turns)
  door.upgraded = false
  if position then drop_place(position) end
  if ask.more > 0 then
    place.waiting, place.window = ask.more, ask.window
    append(place, door.number + 1)
  end
  local placed = ask.more > 0
  if ask.mode == 'w' then
    local claim = ask.claims[1]
    set('admit_upto', 0)
    set('admit_until', 0)
    put_writer(claim[1], claim[2], claim[3])
  else
    local comers = {}
    for _, claim in ipairs(ask.claims) do
      if not known[claim[1]] then comers[#comers + 1] = claim end
    end
    add_readers(comers)
  end
  if not next(known) then return {fence, now} end
  local items = {}
  for i, claim in ipairs(ask.claims) do items[i] = told(claim[1]) end
  return live(placed, items)
end

-- Grant, or give a place, or refuse; idempotent by ticket.
local function acquire(ask, foreign, turns, vacate)
  local known, items = {}, {}
  if held() then
    for _, claim in ipairs(ask.claims) do
      local mode = grant_of(claim[1])
      if mode then
        if mode ~= ask.mode then return refused('other mode', nil, foreign) end
        known[claim[1]] = true
        items[#items + 1] = told(claim[1])
      end
    end
  end
  local place, position
  if ask.gate ~= '' then place, position = place_of(ask.gate, ask.mode) end
  if #items == #ask.claims then return live(place, items) end
  if place then refresh(place, ask) else place = newcomer(ask) end
  if not foreign and not vacate and may_enter(place, ask.policy) then
    return enter(ask, place, position, turns, known)
  end
  if not ask.may_queue then
    return refused(why_not(ask, foreign), retry_after(place, foreign), foreign)
  end
  if not position then
    if ask.max_waiters then
      local waiting = 0
      for _, other in ipairs(queue) do waiting = waiting + other.waiting end
      if waiting >= ask.max_waiters then return refused('full', nil, foreign) end
    end
    append(place, place.number)
    changed = true
  end
  if items[1] then return live(true, items) end
  return {WAITS, ask.gate, ask.mode}
end

-- Undo an acquire, whether it was granted, queued or never arrived.
local function withdraw(gate, mode, keep, upgrader, tickets, foreign)
  local was_held = {}
  for _, ticket in ipairs(tickets) do
    if held() and grant_of(ticket) then
      drop(ticket)
      was_held[#was_held + 1] = ticket
    end
  end
  if foreign then
    for _, ticket in ipairs(tickets) do
      if foreign.ticket == ticket then
        was_held, foreign = {ticket}, nil
        break
      end
    end
  end
  if door.slot and door.slot.ticket == upgrader then
    door.slot = nil
    changed = true
  end
  if not keep then
    local _, position = place_of(gate, mode)
    if position then drop_place(position) end
  end
  return foreign, was_held
end
