-- The rules of a semaphore, as in core/permits.py, and those of its mutex record, as in
-- core/mutex_record.py.

local permits = {}

-- Return how many permits there are for this entry.
function permits.limit_for(entry)
  local limit = entry.limit
  for held in pairs(doorman.limits) do limit = math.min(limit, held) end
  for other in queue.each('other') do
    if other.number >= entry.number then break end
    if not queue.missed_claim(other) then
      limit = math.min(limit, other.limit)
      -- Those that are left have the same.
      if queue.sums.least == queue.sums.most then break end
    end
  end
  return limit
end

-- Return how many permits are free for this entry: not those that earlier entries wait for.
function permits.free(entry)
  if doorman.barred_until > now then return 0 end
  local limit, reserved = entry.limit, doorman.held
  for held in pairs(doorman.limits) do limit = math.min(limit, held) end
  for other in queue.each('other') do
    if other.number >= entry.number or limit <= reserved then break end
    if not queue.missed_claim(other) then
      limit, reserved = math.min(limit, other.limit), reserved + other.waiting
    end
  end
  return math.max(0, limit - reserved)
end

-- Return the microseconds until time alone may free a permit for this entry, or -1.
function permits.retry_after(entry, foreign)
  local wait = record.wait_for_others(foreign)
  if wait then return wait end
  local soon = math.huge
  if doorman.held > 0 then
    local _, first = record.at_the_end(1)
    soon = first
  end
  for _, other in ipairs(queue.called('other')) do
    if other.number >= entry.number then break end
    if not queue.missed_claim(other) then
      soon = math.min(soon, other.claim_until)
    end
  end
  return soon < math.huge and math.max(0, soon - now) or -1
end

-- Reserve the free permits for the entries whose turn it is; return the clients to be woken.
function permits.offer()
  local limit, reserved, woken = math.huge, doorman.held, {}
  local called, barred = queue.called('other'), doorman.barred_until > now
  for held in pairs(doorman.limits) do limit = math.min(limit, held) end
  for entry in queue.each('other') do
    if not queue.missed_claim(entry) then
      limit = math.min(limit, entry.limit)
      -- No permit is free for this one and those behind it.
      if barred or limit <= reserved then break end
      if not entry.claim_until then
        record.alter(entry, 'claim_until', now + entry.window)
        woken[#woken + 1] = entry.client_id
      end
      entry.reached = doorman.last
      reserved = reserved + entry.waiting
    end
  end
  for _, entry in ipairs(called) do
    -- A permit that was offered is taken: the entry has not missed its claim.
    if entry.reached ~= doorman.last and not queue.missed_claim(entry) then
      record.alter(entry, 'claim_until', nil)
    end
  end
  return woken
end

function permits.grant_item(permit)
  return {permit.ticket, permit.since, permit.expires or -1, permit.details, permit.fence,
    permit.limit}
end

function permits.live(has_entry, found)
  local items = {}
  for i, permit in ipairs(found) do items[i] = permits.grant_item(permit) end
  return {0, now, has_entry and 1 or 0, doorman.last, unpack(items)}
end

function permits.refused(why, wait, foreign)
  return {-2, why, wait, unpack(record.describe(foreign))}
end

function permits.refusal_reason(entry, foreign)
  if foreign then return 'held' end
  if doorman.barred_until > now then return 'barred' end
  return permits.limit_for(entry) <= doorman.held and 'held' or 'ahead'
end

function permits.new_entry(ask)
  return {field = 'p:' .. ask.client_id, client_id = ask.client_id, number = doorman.number + 1,
    since = now_text, expires = now + ask.entry_ttl, window = ask.window,
    waiting = ask.waiting, limit = ask.limit, who = ask.who}
end

-- Grant so many of these claims, each with a fence of its own; the tasks that are left go
-- to the tail of the queue.
function permits.take(count, asking, ask, entry, queued)
  local fence = math.max(doorman.last + 1, now)
  for i = 1, count do
    local claim = asking[i]
    record.put_permit({ticket = claim.ticket, fence = fence + i - 1, limit = ask.limit,
      since = now, expires = claim.lease and now + claim.lease, details = claim.details})
  end
  record.set('last', fence + count - 1)
  if queued then queue.drop(entry) end
  local left = #asking - count + ask.more
  local has_entry = left > 0 and ask.may_queue
  if has_entry then
    entry.waiting, entry.window = left, ask.window
    entry.who = (asking[count + 1] or ask.claims[1]).who
    queue.append(entry, doorman.number + 1)
  end
  if count == #ask.claims then return {fence, now} end
  local found = {}
  for _, claim in ipairs(ask.claims) do found[#found + 1] = record.permit_of(claim.ticket) end
  return permits.live(has_entry, found)
end

local WAITS = {} -- marks an answer that settled() in permits_main.lua computes at the end

-- Grant, queue or refuse an acquire; repeated tickets keep their grants.
function permits.acquire(ask, foreign)
  local known, asking = {}, {}
  for _, claim in ipairs(ask.claims) do
    local permit = record.permit_of(claim.ticket)
    if permit then known[#known + 1] = permit else asking[#asking + 1] = claim end
  end
  local entry = ask.client_id ~= '' and queue.entry_of(ask.client_id, 'p') or nil
  local queued = entry ~= nil
  if not asking[1] then return permits.live(entry, known) end
  if entry then
    record.refresh(entry, ask)
    record.alter(entry, 'limit', ask.limit)
  else
    entry = permits.new_entry(ask)
  end
  local count = foreign and 0 or math.min(permits.free(entry), #asking)
  if count > 0 then return permits.take(count, asking, ask, entry, queued) end
  if not ask.may_queue then
    local wait = permits.retry_after(entry, foreign)
    return permits.refused(permits.refusal_reason(entry, foreign), wait, foreign)
  end
  if not queued then
    if ask.max_waiters and queue.sums.waiting >= ask.max_waiters then
      return permits.refused('full', -1, foreign)
    end
    queue.append(entry, entry.number)
  end
  if known[1] then return permits.live(true, known) end
  return {WAITS, ask.client_id}
end

function permits.expire()
  if step.first and tonumber(step.first[2]) <= now then
    local dead = call('ZRANGEBYSCORE', PERMITS, '-inf', now, 'WITHSCORES')
    for _, permit in ipairs(record.permits_in(dead)) do
      local delay = record.delay_of(permit)
      record.drop_permit(permit)
      if delay > 0 then
        record.set('barred_until', math.max(doorman.barred_until, permit.expires + delay))
      end
    end
  end
  queue.expire()
end

-- End the live grants if another program has changed or deleted the mutex record.
function permits.reconcile()
  if doorman.held == 0 or mutex_value == doorman.seat then return end
  local reason = mutex_value and 'stolen' or 'forced'
  local all = record.permits_in(record.at_the_end(doorman.held))
  if #all > 4 then record.note(doorman.last, '*', reason) end
  for _, permit in ipairs(all) do
    if #all <= 4 then
      record.note(doorman.last, record.holder_in(permit.details), reason)
    end
    record.drop_permit(permit)
  end
end

-- Return the mutex record if another program wrote it. Our own word is never foreign: without the
-- state that knows it, it is removed, or written anew, at the end of the step.
function permits.foreign_record()
  if not mutex_value or mutex_value == doorman.seat then return nil end
  local ticket = match(mutex_value, '^(.+),') or mutex_value
  if ticket == 'permits' then return nil end
  return {value = mutex_value, ticket = ticket}
end

-- Release a ticket whose record was lost and whose mutex record counts as foreign. Return the
-- foreign holder afterwards, and whether the ticket held the semaphore.
function permits.take_out(foreign, ticket)
  if foreign and foreign.ticket == ticket then return nil, true end
  return foreign, false
end

function permits.release(ticket, mode, asks, foreign)
  local permit, was_held = record.permit_of(ticket), true
  if permit and (mode == '' or mode == 'p') then
    record.drop_permit(permit)
  elseif mode == 'r' then
    was_held = false
  else
    foreign, was_held = permits.take_out(foreign, ticket)
  end
  local answer = {-5, was_held and 1 or 0, doorman.last, doorman.endings}
  for i, ask in ipairs(asks) do answer[4 + i] = permits.acquire(ask, foreign) end
  return foreign, answer
end

-- Undo an acquire, whether it was granted, queued or never carried out.
function permits.withdraw(client_id, keep, tickets, foreign)
  local was_held = {}
  for _, ticket in ipairs(tickets) do
    local permit, taken = record.permit_of(ticket), false
    if permit then
      record.drop_permit(permit)
    else
      foreign, taken = permits.take_out(foreign, ticket)
    end
    if permit or taken then was_held[#was_held + 1] = ticket end
  end
  if not keep then
    local entry = queue.entry_of(client_id, 'p')
    if entry then queue.drop(entry) end
  end
  return foreign, was_held
end

function permits.renew(permit, lease)
  local longer = record.renewed_until(permit.expires, lease)
  if longer ~= permit.expires then
    permit.expires, permit.moved = longer, true
    step.changed, step.regranted = true, true
  end
  record.will_mean(permit)
end

-- Pass a grant on to a new ticket, which keeps its limit and has a fence of its own.
function permits.adopt(ticket, claim)
  local new, old = record.permit_of(claim.ticket), record.permit_of(ticket)
  if not new and not old then return record.not_held() end
  if not new then
    record.set('last', math.max(doorman.last + 1, now))
    new = {ticket = claim.ticket, fence = doorman.last, limit = old.limit, since = now,
      expires = claim.lease and now + claim.lease, details = claim.details}
    record.drop_permit(old)
    record.put_permit(new)
  end
  return {now, 0, 'p', unpack(permits.grant_item(new), 2)}
end

function permits.force(holder, fence)
  for _, permit in ipairs(record.permits_in(record.at_the_end(doorman.held))) do
    if permit.fence == fence and record.holder_in(permit.details) == holder then
      record.drop_permit(permit)
      record.note(fence, holder, 'forced')
      return 1
    end
  end
  return 0
end
