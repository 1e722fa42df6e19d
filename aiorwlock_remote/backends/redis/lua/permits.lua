-- The rules of a semaphore, as in core/permits.py, and those of its seat, as in
-- core/mutex_record.py.

local permits = {}

function permits.late(place)
  return place.claim_until and place.claim_until <= now
end

-- Return how many permits there are for this place.
function permits.limit_for(place)
  local limit = place.limit
  for held in pairs(door.limits) do limit = math.min(limit, held) end
  for other in queue.each('other') do
    if other.number >= place.number then break end
    if not permits.late(other) then
      limit = math.min(limit, other.limit)
      -- Those that are left have the same.
      if queue.sums.least == queue.sums.most then break end
    end
  end
  return limit
end

-- Return how many permits are free for this place: not those that earlier places wait for.
function permits.free(place)
  if door.barred_until > now then return 0 end
  local limit, reserved = place.limit, door.held
  for held in pairs(door.limits) do limit = math.min(limit, held) end
  for other in queue.each('other') do
    if other.number >= place.number or limit <= reserved then break end
    if not permits.late(other) then
      limit, reserved = math.min(limit, other.limit), reserved + other.waiting
    end
  end
  return math.max(0, limit - reserved)
end

-- Return the microseconds until time alone may free a permit for this place, or -1.
function permits.retry_after(place, foreign)
  if foreign then
    local at = call('PEXPIRETIME', SEAT)
    return at < 0 and -1 or math.max(0, at * 1000 - now)
  end
  if door.barred_until > now then return door.barred_until - now end
  local soon = math.huge
  if door.held > 0 then
    local _, first = record.at_the_end(1)
    soon = first
  end
  for _, other in ipairs(queue.called('other')) do
    if other.number >= place.number then break end
    if not permits.late(other) then
      soon = math.min(soon, other.claim_until)
    end
  end
  return soon < math.huge and math.max(0, soon - now) or -1
end

-- Reserve the free permits for the places whose turn it is; return the clients to be woken.
function permits.offer()
  local limit, reserved, woken = math.huge, door.held, {}
  local called, barred = queue.called('other'), door.barred_until > now
  for held in pairs(door.limits) do limit = math.min(limit, held) end
  for place in queue.each('other') do
    if not permits.late(place) then
      limit = math.min(limit, place.limit)
      -- No permit is free for this one and those behind it.
      if barred or limit <= reserved then break end
      if not place.claim_until then
        record.alter(place, 'claim_until', now + place.window)
        woken[#woken + 1] = place.gate
      end
      place.reached = door.last
      reserved = reserved + place.waiting
    end
  end
  for _, place in ipairs(called) do
    -- A permit that was offered is taken: the place has not missed its claim.
    if place.reached ~= door.last and not permits.late(place) then
      record.alter(place, 'claim_until', nil)
    end
  end
  return woken
end

function permits.pass_over(gates)
  for _, place in ipairs(queue.called('other')) do
    if gates[place.gate] and not permits.late(place) then
      record.alter(place, 'claim_until', now)
    end
  end
end

function permits.told(permit)
  return {permit.ticket, permit.since, permit.expires or -1, permit.details, permit.fence,
    permit.limit}
end

function permits.live(placed, found)
  local items = {}
  for i, permit in ipairs(found) do items[i] = permits.told(permit) end
  return {0, now, placed and 1 or 0, door.last, unpack(items)}
end

function permits.refused(why, wait, foreign)
  return {-2, why, wait, unpack(record.describe(foreign))}
end

function permits.why_not(place, foreign)
  if foreign then return 'held' end
  if door.barred_until > now then return 'barred' end
  return permits.limit_for(place) <= door.held and 'held' or 'ahead'
end

function permits.refresh(place, ask)
  local window = math.max(place.window, ask.window)
  if permits.late(place) then window = math.min(2 * window, ask.place_life) end
  record.alter(place, 'expires', now + ask.place_life)
  record.alter(place, 'window', window)
  record.alter(place, 'waiting', ask.waiting)
  record.alter(place, 'claim_until', nil)
  record.alter(place, 'who', ask.claims[1].who)
  record.alter(place, 'limit', ask.limit)
end

function permits.newcomer(ask)
  return {field = 'p:' .. ask.gate, gate = ask.gate, number = door.number + 1,
    since = now_text, expires = now + ask.place_life, window = ask.window,
    waiting = ask.waiting, limit = ask.limit, who = ask.claims[1].who}
end

-- Grant so many of these claims, each with a fence of its own; the tasks that are left go
-- to the tail of the queue.
function permits.take(count, asking, ask, place, queued)
  local fence = math.max(door.last + 1, now)
  for i = 1, count do
    local claim = asking[i]
    record.put_permit({ticket = claim.ticket, fence = fence + i - 1, limit = ask.limit,
      since = now, expires = claim.lease and now + claim.lease, details = claim.details})
  end
  record.set('last', fence + count - 1)
  if queued then queue.drop(place) end
  local left = #asking - count + ask.more
  local placed = left > 0 and ask.may_queue
  if placed then
    place.waiting, place.window = left, ask.window
    place.who = (asking[count + 1] or ask.claims[1]).who
    queue.append(place, door.number + 1)
  end
  if count == #ask.claims then return {fence, now} end
  local found = {}
  for _, claim in ipairs(ask.claims) do found[#found + 1] = record.permit_of(claim.ticket) end
  return permits.live(placed, found)
end

local WAITS = {} -- marks an answer that settled() in permits_main.lua computes at the end

-- Grant, queue or refuse an acquire; repeated tickets keep their grants.
function permits.acquire(ask, foreign)
  local known, asking = {}, {}
  for _, claim in ipairs(ask.claims) do
    local permit = record.permit_of(claim.ticket)
    if permit then known[#known + 1] = permit else asking[#asking + 1] = claim end
  end
  local place = ask.gate ~= '' and queue.place_of(ask.gate, 'p') or nil
  local queued = place ~= nil
  if not asking[1] then return permits.live(place, known) end
  if place then permits.refresh(place, ask) else place = permits.newcomer(ask) end
  local count = foreign and 0 or math.min(permits.free(place), #asking)
  if count > 0 then return permits.take(count, asking, ask, place, queued) end
  if not ask.may_queue then
    local wait = permits.retry_after(place, foreign)
    return permits.refused(permits.why_not(place, foreign), wait, foreign)
  end
  if not queued then
    if ask.max_waiters and queue.sums.waiting >= ask.max_waiters then
      return permits.refused('full', -1, foreign)
    end
    queue.append(place, place.number)
  end
  if known[1] then return permits.live(true, known) end
  return {WAITS, ask.gate}
end

function permits.note(fence, holder, reason)
  local noted = {}
  for ending in string.gmatch(door.endings, '[^;]+') do noted[#noted + 1] = ending end
  noted[#noted + 1] = format('%d,%s,%s', fence, holder, reason)
  door.endings = table.concat(noted, ';', math.max(1, #noted - 7))
  step.changed = true
end

function permits.holder_in(details)
  return match(details, '^[^,]*')
end

function permits.expire()
  if step.first and tonumber(step.first[2]) <= now then
    local dead = call('ZRANGEBYSCORE', PERMITS, '-inf', now, 'WITHSCORES')
    for _, permit in ipairs(record.permits_in(dead)) do
      local delay = record.delay_of(permit)
      record.drop_permit(permit)
      if delay > 0 then
        record.set('barred_until', math.max(door.barred_until, permit.expires + delay))
      end
    end
  end
  queue.expire()
end

-- End the live grants if another program has changed or deleted the seat.
function permits.reconcile()
  if door.held == 0 or seat_value == door.seat then return end
  local reason = seat_value and 'stolen' or 'forced'
  local all = record.permits_in(record.at_the_end(door.held))
  if #all > 4 then permits.note(door.last, '*', reason) end
  for _, permit in ipairs(all) do
    if #all <= 4 then
      permits.note(door.last, permits.holder_in(permit.details), reason)
    end
    record.drop_permit(permit)
  end
end

function permits.foreign_seat()
  if not seat_value or seat_value == door.seat then return nil end
  return {value = seat_value, ticket = match(seat_value, '^(.+),') or seat_value}
end

-- Release a ticket whose record was lost and whose seat counts as foreign. Return the
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
  local answer = {-5, was_held and 1 or 0, door.last, door.endings}
  for i, ask in ipairs(asks) do answer[4 + i] = permits.acquire(ask, foreign) end
  return foreign, answer
end

-- Undo an acquire, whether it was granted, queued or never carried out.
function permits.withdraw(gate, keep, tickets, foreign)
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
    local place = queue.place_of(gate, 'p')
    if place then queue.drop(place) end
  end
  return foreign, was_held
end

-- Renew a grant. A renewal never shortens a lease; lease nil: the grant never ends.
function permits.renew(permit, lease)
  local longer = lease and permit.expires and math.max(permit.expires, now + lease) or nil
  if longer ~= permit.expires then
    permit.expires, permit.moved = longer, true
    step.changed, step.regranted = true, true
  end
  record.will_mean(permit)
end

function permits.not_held()
  return {-3, door.last, door.endings}
end

-- Pass a grant on to a new ticket, which keeps its limit and has a fence of its own.
function permits.adopt(ticket, claim)
  local new, old = record.permit_of(claim.ticket), record.permit_of(ticket)
  if not new and not old then return permits.not_held() end
  if not new then
    record.set('last', math.max(door.last + 1, now))
    new = {ticket = claim.ticket, fence = door.last, limit = old.limit, since = now,
      expires = claim.lease and now + claim.lease, details = claim.details}
    record.drop_permit(old)
    record.put_permit(new)
  end
  return {now, 0, 'p', unpack(permits.told(new), 2)}
end

function permits.force(holder, fence)
  for _, permit in ipairs(record.permits_in(record.at_the_end(door.held))) do
    if permit.fence == fence and permits.holder_in(permit.details) == holder then
      record.drop_permit(permit)
      permits.note(fence, holder, 'forced')
      return 1
    end
  end
  return 0
end
