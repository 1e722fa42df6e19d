-- Release, renew and force, as in core/transition.py.

local ending = {}

function ending.release(ticket, mode, asks, foreign)
  local was_held, turns = 0, 0
  local found = record.held() and record.grant_of(ticket)
  if found and (mode == '' or mode == found) then
    was_held, turns = 1, doorman.turns + 1
    admission.confirm(ticket)
    mutex.drop(ticket)
  else
    local taken -- the record was lost: the mutex key alone shows who holds it
    foreign, taken = mutex.take_out(foreign, ticket, mode)
    if taken then was_held = 1 end
  end
  local vacate = turns > MAX_LOCAL_TURNS
  if vacate then turns = 0 end
  local answer = {-5, was_held, doorman.last, doorman.endings}
  for i, ask in ipairs(asks) do
    answer[4 + i] = acquiring.acquire(ask, foreign, turns, vacate)
  end
  return foreign, answer
end

function ending.renew(ticket, lease)
  admission.confirm(ticket)
  if not (record.held() and record.grant_of(ticket)) then return 0 end
  local mode, expires = record.grant_of(ticket)
  local longer = record.renewed_until(expires, lease)
  local _, details = record.details_of(ticket)
  if longer ~= expires then
    step.changed, step.regranted = true, true
    if mode == 'r' then
      call('ZADD', READERS, longer or '+inf', ticket)
      step.latest = nil
    else
      doorman.writer.expires, doorman.writer.dirty = longer, true
    end
  end
  record.will_mean(longer, details)
  local item = acquiring.grant_item(ticket)
  item[1] = mode
  return item
end

function ending.force(holder, fence)
  if fence ~= doorman.last or not record.held() then return 0 end
  if doorman.writer then
    if record.holder_in(doorman.writer.details) ~= holder then return 0 end
    mutex.drop_writer()
    record.note(doorman.last, holder, 'forced')
    return 1
  end
  for _, ticket in ipairs(record.first_readers(doorman.readers)) do
    local _, details = record.details_of(ticket)
    if record.holder_in(details) == holder then
      mutex.drop_readers({ticket})
      record.note(doorman.last, holder, 'forced')
      return 1
    end
  end
  return 0
end
