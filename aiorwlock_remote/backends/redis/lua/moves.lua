-- Moves: core/moves.py. main.lua has refused the illegal ones before anything changed.

local function not_held()
  return {-3, door.last, door.endings}
end

local function moved(mode, claim)
  local fence = math.max(door.last + 1, now)
  set('last', fence)
  if mode == 'w' then
    put_writer(claim[1], claim[2], claim[3])
  else
    add_readers({claim})
  end
  return {fence, now}
end

local function downgrade(ticket, claim)
  if grant_of(claim[1]) == 'r' then return live(false, {told(claim[1])}) end
  if not grant_of(ticket) then return not_held() end
  drop_writer()
  return moved('r', claim)
end

local function upgrade(ticket, claim, gate, place_life, foreign)
  if grant_of(claim[1]) == 'w' then return live(false, {told(claim[1])}) end
  if not grant_of(ticket) then return not_held() end
  if door.slot and door.slot.ticket ~= ticket then return {-4} end
  local barred = door.barred_until > now
  if door.readers == 1 and not barred and not admitted()[1] then
    drop_readers({ticket})
    set('admit_upto', 0)
    set('admit_until', 0)
    local answer = moved('w', claim)
    door.upgraded = true
    return answer
  end
  if not place_life then
    if barred then return refused('barred', door.barred_until - now, foreign) end
    return refused('held', nil, foreign)
  end
  door.slot = {expires = now + place_life, called = false, gate = gate, ticket = ticket}
  changed = true
  return {WAITS, gate, 'w'}
end
