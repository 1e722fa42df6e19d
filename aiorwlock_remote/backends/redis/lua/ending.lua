-- The rest of core/transition.py: release, renew, force.

local SEAT_TURNS = 100

local function release(ticket, mode, asks, foreign)
  local was_held, turns = 0, 0
  local found = held() and grant_of(ticket)
  if found and (mode == '' or mode == found) then
    was_held, turns = 1, door.turns + 1
    drop(ticket)
  elseif foreign and foreign.ticket == ticket and mode ~= 'r' then
    was_held, foreign = 1, nil -- the record was lost; the seat is enough
  end
  local vacate = turns > SEAT_TURNS
  if vacate then turns = 0 end
  local answer = {-5, was_held, door.last, door.endings}
  for i, ask in ipairs(asks) do
    answer[4 + i] = acquire(ask, foreign, turns, vacate)
  end
  answer[3] = door.last -- why it is gone is judged after that
  return foreign, answer
end

-- A renewal never shortens; nil: never ends.
local function renew(ticket, lease)
  if not (held() and grant_of(ticket)) then return 0 end
  local mode, expires = grant_of(ticket)
  local longer = lease and expires and math.max(expires, now + lease) or nil
  local _, details = details_of(ticket)
  if longer ~= expires then
    changed, regranted = true, true
    if mode == 'r' then
      call('ZADD', READERS, longer or '+inf', ticket)
    else
      door.writer.expires, door.writer.dirty = longer, true
    end
  end
  if longer then horizon = math.max(horizon, longer + delay_in(details)) end
  local item = told(ticket)
  item[1] = mode
  return item
end

local function force(holder, fence)
  if fence ~= door.last or not held() then return 0 end
  if door.writer then
    if holder_in(door.writer.details) ~= holder then return 0 end
    drop_writer()
    note(holder, 'forced')
    return 1
  end
  for first = 0, door.readers - 1, CHUNK do
    for _, ticket in ipairs(call('ZRANGE', READERS, first, first + CHUNK - 1)) do
      local _, details = details_of(ticket)
      if holder_in(details) == holder then
        drop_readers({ticket})
        note(holder, 'forced')
        return 1
      end
    end
  end
  return 0
end
