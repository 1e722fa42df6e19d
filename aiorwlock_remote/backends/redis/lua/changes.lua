-- Changes of what was read, and answers: the scripts of locks and of semaphores have them.

function record.set(name, value)
  if doorman[name] ~= value then
    doorman[name] = value
    step.changed = true
  end
end

function record.alter(entry, name, value)
  if entry[name] ~= value then
    queue.subtract(entry)
    entry[name] = value
    queue.add(entry)
    queue.touch(entry)
  end
end

-- Let the entry's client wait on: it has asked again.
function record.refresh(entry, ask)
  local window = math.max(entry.window, ask.window)
  if queue.missed_claim(entry) then window = math.min(2 * window, ask.entry_ttl) end
  record.alter(entry, 'expires', now + ask.entry_ttl)
  record.alter(entry, 'window', window)
  record.alter(entry, 'waiting', ask.waiting)
  record.alter(entry, 'claim_until', nil)
  record.alter(entry, 'who', ask.who)
end

-- Skip the entries of these clients that were offered the resource, until they ask again.
function queue.skip_clients(client_ids)
  for kind in pairs(queue.order) do
    for _, entry in ipairs(queue.called(kind)) do
      if client_ids[entry.client_id] and not queue.missed_claim(entry) then
        record.alter(entry, 'claim_until', now)
      end
    end
  end
end

-- Note why a grant with this fence ended; keep the last eight notes.
function record.note(fence, holder, reason)
  local noted = {}
  for ending in string.gmatch(doorman.endings, '[^;]+') do noted[#noted + 1] = ending end
  noted[#noted + 1] = format('%d,%s,%s', fence, holder, reason)
  doorman.endings = table.concat(noted, ';', math.max(1, #noted - 7))
  step.changed = true
end

function record.holder_in(details)
  return match(details, '^[^,]*')
end

function record.not_held()
  return {-3, doorman.last, doorman.endings}
end

-- Return the end of a renewed lease. A renewal does not shorten a lease, unless -lease is
-- given; lease nil: the grant never ends.
function record.renewed_until(expires, lease)
  if lease and lease < 0 then return now - lease end
  return lease and expires and math.max(expires, now + lease) or nil
end

-- Return the microseconds until a foreign mutex record expires (-1: never), or a lock delay
-- ends; nil if there is neither.
function record.wait_for_others(foreign)
  if foreign then
    local at = call('PEXPIRETIME', MUTEX)
    return at < 0 and -1 or math.max(0, at * 1000 - now)
  end
  return doorman.barred_until > now and doorman.barred_until - now or nil
end
