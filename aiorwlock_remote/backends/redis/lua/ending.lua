-- Release, renew and force, as in core/transition.py.

local ending = {}

function ending.release(ticket, mode, asks, foreign)
  local was_held, turns = 0, 0
  local found = record.held() and record.grant_of(ticket)
  if found and (mode == '' or mode == found) then
    was_held, turns = 1, door.turns + 1
    turn.confirm(ticket)
    seat.drop(ticket)
  else
    local taken -- the record was lost: the mutex key alone shows who holds it
    foreign, taken = seat.take_out(foreign, ticket, mode)
    if taken then was_held = 1 end
  end
  local vacate = turns > SEAT_TURNS
  if vacate then turns = 0 end
  local answer = {-5, was_held, door.last, door.endings}
  for i, ask in ipairs(asks) do
    answer[4 + i] = entering.acquire(ask, foreign, turns, vacate)
  end
  return foreign, answer
end

-- Renew a grant. A renewal never shortens a lease; lease nil: the grant never ends.
function ending.renew(ticket, lease)
  turn.confirm(ticket)
  if not (record.held() and record.grant_of(ticket)) then return 0 end
  local mode, expires = record.grant_of(ticket)
  local longer = lease and expires and math.max(expires, now + lease) or nil
  local _, details = record.details_of(ticket)
  if longer ~= expires then
    step.changed, step.regranted = true, true
    if mode == 'r' then
      call('ZADD', READERS, longer or '+inf', ticket)
      step.latest = nil
    else
      door.writer.expires, door.writer.dirty = longer, true
    end
  end
  record.will_mean(longer, details)
  local item = entering.told(ticket)
  item[1] = mode
  return item
end

function ending.force(holder, fence)
  if fence ~= door.last or not record.held() then return 0 end
  if door.writer then
    if seat.holder_in(door.writer.details) ~= holder then return 0 end
    seat.drop_writer()
    seat.note(holder, 'forced')
    return 1
  end
  for _, ticket in ipairs(record.first_readers(door.readers)) do
    local _, details = record.details_of(ticket)
    if seat.holder_in(details) == holder then
      seat.drop_readers({ticket})
      seat.note(holder, 'forced')
      return 1
    end
  end
  return 0
end
