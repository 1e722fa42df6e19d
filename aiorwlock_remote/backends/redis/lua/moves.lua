-- Downgrade, upgrade and adopt, as in core/transition.py. main.lua has refused illegal
-- commands before anything was changed.

local moves = {}

function moves.not_held()
  return {-3, door.last, door.endings}
end

function moves.moved(mode, claim)
  local fence = math.max(door.last + 1, now)
  record.set('last', fence)
  if mode == 'w' then
    record.put_writer(claim[1], claim[2], claim[3])
  else
    record.add_readers({claim})
  end
  return {fence, now}
end

function moves.downgrade(ticket, claim)
  if record.grant_of(claim[1]) == 'r' then
    return entering.live(false, {entering.told(claim[1])})
  end
  if not record.grant_of(ticket) then return moves.not_held() end
  seat.drop_writer()
  return moves.moved('r', claim)
end

-- Pass a grant on to a new ticket. The lock is never free meanwhile, so no waiter gets it.
function moves.adopt(ticket, claim)
  local new = claim[1]
  if not record.grant_of(new) then
    local mode = record.grant_of(ticket)
    if not mode then return moves.not_held() end
    if mode == 'w' then
      record.set('last', math.max(door.last + 1, now))
      record.put_writer(new, claim[2], claim[3])
    else
      record.add_readers({claim})
      seat.drop_readers({ticket})
    end
  end
  local item = entering.told(new)
  item[1] = record.grant_of(new)
  return {now, door.last, unpack(item)}
end

function moves.upgrade(ticket, claim, gate, place_life, foreign)
  if record.grant_of(claim[1]) == 'w' then
    return entering.live(false, {entering.told(claim[1])})
  end
  if not record.grant_of(ticket) then return moves.not_held() end
  if door.slot and door.slot.ticket ~= ticket then return {-4} end
  local barred = door.barred_until > now
  if door.readers == 1 and not foreign and not barred and not turn.admitted(true)[1] then
    seat.drop_readers({ticket})
    record.set('admit_upto', 0)
    record.set('admit_until', 0)
    local answer = moves.moved('w', claim)
    door.upgraded = true
    return answer
  end
  if not place_life then
    if barred then return entering.refused('barred', door.barred_until - now, foreign) end
    return entering.refused('held', nil, foreign)
  end
  door.slot = {expires = now + place_life, called = false, gate = gate, ticket = ticket}
  step.changed = true
  return {WAITS, gate, 'w'}
end
