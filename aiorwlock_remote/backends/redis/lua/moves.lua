-- Downgrade, upgrade and adopt, as in core/transition.py. main.lua has refused illegal
-- commands before anything was changed.

local moves = {}

function moves.moved(mode, claim)
  local fence = math.max(doorman.last + 1, now)
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
    return acquiring.live(false, {acquiring.grant_item(claim[1])})
  end
  if not record.grant_of(ticket) then return record.not_held() end
  mutex.drop_writer()
  return moves.moved('r', claim)
end

-- Pass a grant on to a new ticket. The lock is never free meanwhile, so no waiter gets it.
function moves.adopt(ticket, claim)
  local new = claim[1]
  if not record.grant_of(new) then
    local mode = record.grant_of(ticket)
    if not mode then return record.not_held() end
    if mode == 'w' then
      record.set('last', math.max(doorman.last + 1, now))
      record.put_writer(new, claim[2], claim[3])
    else
      record.add_readers({claim})
      mutex.drop_readers({ticket})
    end
  end
  local item = acquiring.grant_item(new)
  item[1] = record.grant_of(new)
  return {now, doorman.last, unpack(item)}
end

function moves.upgrade(ticket, claim, client_id, entry_ttl, foreign)
  if record.grant_of(claim[1]) == 'w' then
    return acquiring.live(false, {acquiring.grant_item(claim[1])})
  end
  if not record.grant_of(ticket) then return record.not_held() end
  if doorman.upgrader and doorman.upgrader.ticket ~= ticket then return {-4} end
  local barred = doorman.barred_until > now
  if doorman.readers == 1 and not foreign and not barred and not admission.admitted(true)[1] then
    mutex.drop_readers({ticket})
    record.set('admit_upto', 0)
    record.set('admit_until', 0)
    local answer = moves.moved('w', claim)
    doorman.upgraded = true
    return answer
  end
  if not entry_ttl then
    if barred then return acquiring.refused('barred', doorman.barred_until - now, foreign) end
    return acquiring.refused('held', nil, foreign)
  end
  doorman.upgrader = {expires = now + entry_ttl, called = false, client_id = client_id,
    ticket = ticket}
  step.changed = true
  return {WAITS, client_id, 'w'}
end
