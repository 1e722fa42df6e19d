-- The published record of a resource on a pair of keys (S3): a set of readers, a string for
-- the writer. Functions defined here replace those of mutex_record.lua and save.lua; all else is as
-- with one mutex key.
--
-- KEYS  1 the writer's string   2 state   3 expiry, a sorted set of our readers
--       4 queue   5 the readers' set
--
-- The value of the mutex record is 'w' and the writer's identifier, or 'r': ours are among
-- the readers.
-- Members of the set that are not in the sorted set are foreign: they never expire, our
-- readers enter beside them, our writers do not.

local pair = {writer = mutex_value, grant_of = record.grant_of,
  describe = record.describe, add_readers = record.add_readers,
  drop_readers = mutex.drop_readers, never_ends = save.never_ends, write = save.write,
  comers = {}} -- tickets that the set gets at the end of the step
local SAMPLE = 20

local key = pair.writer and 'w' .. pair.writer or nil
if key and key == was and key ~= doorman.seat then
  step.outdated, step.changed = key, true
  key = doorman.writer and doorman.seat
  pair.writer = doorman.writer and doorman.writer.ticket
end
mutex_value = members > 0 and not doorman.writer and 'r' or key
pair.others = members - doorman.readers -- how many of the set are other programs'

function pair.is_ours()
  return pair.writer ~= nil and pair.writer ~= false and 'w' .. pair.writer == doorman.seat
end

function pair.guests()
  return pair.others > 0 and {mode = 'r'} or nil
end

function mutex.foreign_record()
  if pair.writer and not pair.is_ours() then
    return {mode = 'w', ticket = pair.writer}
  end
  return pair.guests()
end

function mutex.bars(foreign, mode)
  return foreign ~= nil and not (foreign.mode == 'r' and mode == 'r')
end

function mutex.take_out(foreign, ticket, mode)
  if not foreign then return nil, false end
  if foreign.mode == 'w' and mode ~= 'r' and foreign.ticket == ticket then
    call('DEL', MUTEX)
    pair.writer = nil
    return pair.guests(), true
  end
  if mode == 'w' or call('SREM', SET, ticket) == 0 then return foreign, false end
  pair.others = pair.others - 1
  return foreign.mode == 'w' and foreign or pair.guests(), true
end

function mutex.force(foreign, value)
  local left, taken = mutex.take_out(foreign, value, '')
  return left, taken and 1 or 0
end

-- A reader of ours that another program removed from the set holds nothing any more.
function record.grant_of(ticket)
  local mode, expires = pair.grant_of(ticket)
  if mode == 'r' and not pair.comers[ticket] and call('SISMEMBER', SET, ticket) == 0 then
    local _, details = record.details_of(ticket)
    record.note(doorman.last, record.holder_in(details), 'forced')
    mutex.drop_readers({ticket})
    return nil
  end
  return mode, expires
end

function record.add_readers(comers)
  pair.add_readers(comers)
  for _, comer in ipairs(comers) do pair.comers[comer[1]] = true end
end

function mutex.drop_readers(tickets)
  pair.drop_readers(tickets)
  for _, ticket in ipairs(tickets) do
    if call('SISMEMBER', SET, ticket) == 0 then pair.others = pair.others + 1 end
    pair.comers[ticket] = nil
  end
end

-- If fewer are in the set than hold, some were removed, or a step was stopped before its end.
if pair.others < 0 and members > 0 then
  for _, ticket in ipairs(record.first_readers(doorman.readers)) do record.grant_of(ticket) end
end

function record.describe(foreign)
  if not foreign or foreign.mode == 'w' then return pair.describe(foreign) end
  for _, member in ipairs(call('SRANDMEMBER', SET, SAMPLE)) do
    if not call('ZSCORE', READERS, member) then
      return {'f' .. member, unpack(pair.describe(nil))}
    end
  end
  return pair.describe(nil)
end

-- The readers are in the set already; make the writer's string agree with the record.
function save.sync_mutex()
  local writer = doorman.writer
  if not writer then
    if pair.is_ours() or step.outdated then
      save.delete_key()
      pair.writer = nil
    end
    return doorman.readers > 0 and 'r' or nil
  end
  local value = 'w' .. writer.ticket
  if step.regranted or step.outdated or value ~= mutex_value then
    local there = step.outdated or pair.writer and 'w' .. pair.writer
    save.was = there ~= value and there or nil
    save.mutex_args = {writer.ticket}
    if writer.expires then
      save.mutex_args = {writer.ticket, 'PXAT',
        format('%d', math.ceil(writer.expires / 1000))}
    end
    pair.writer = writer.ticket
  end
  return value
end

-- The set is written last, as the string is: other programs read both.
function save.write(foreign)
  pair.write(foreign)
  local tickets = {}
  for ticket in pairs(pair.comers) do tickets[#tickets + 1] = ticket end
  if tickets[1] then call('SADD', SET, unpack(tickets)) end
  pair.comers = {}
end

-- Members of the set do not expire: keep the record of ours as long as the set exists.
function save.never_ends()
  return doorman.readers > 0 or pair.never_ends()
end
