-- Acquire and withdraw, as in core/transition.py.

local entering = {}

local WAITS = {} -- marks an answer that main.lua's settled() computes at the end

function entering.live(placed, items)
  return {0, now, placed and 1 or 0, door.last, unpack(items)}
end

-- Return a grant as an answer shows it: ticket, since, expiry or -1, details.
function entering.told(ticket)
  local _, expires = record.grant_of(ticket)
  local since, details = record.details_of(ticket)
  return {ticket, tonumber(since), expires or -1, details}
end

function entering.why_not(ask, foreign)
  if foreign then return 'held' end
  if door.barred_until > now then return 'barred' end
  local shared = ask.mode == 'r' and not door.writer
  return record.held() and not shared and 'held' or 'ahead'
end

function entering.refused(why, wait, foreign)
  return {-2, why, wait or -1, unpack(record.describe(foreign))}
end

-- The claim that an offer to this place may grant, or none.
function entering.put_claim(place, claim, put)
  if not claim or not claim[4] or record.delay_in(claim[3]) > 0 then
    put(place, 'ticket', '')
    put(place, 'lease', 0)
    return
  end
  local holder, who = match(claim[3], '^([^,]*),[^,]*,(.*)$')
  put(place, 'ticket', claim[1])
  put(place, 'lease', claim[4])
  put(place, 'holder', holder)
  put(place, 'who', who)
end

function entering.refresh(place, ask)
  local window = math.max(place.window, ask.window)
  if turn.late(place) then window = math.min(2 * window, ask.place_life) end
  record.alter(place, 'expires', now + ask.place_life)
  record.alter(place, 'window', window)
  record.alter(place, 'waiting', ask.waiting)
  record.alter(place, 'claim_until', nil)
  record.alter(place, 'who', ask.who)
  entering.put_claim(place, ask.push and ask.claims[1], record.alter)
end

function entering.newcomer(ask)
  local place = {field = ask.mode .. ':' .. ask.gate, mode = ask.mode, gate = ask.gate,
    number = door.number + 1, since = now_text, limit = 0, lease = 0, holder = '', waiting = ask.waiting,
    expires = now + ask.place_life, window = ask.window, who = ask.who}
  entering.put_claim(place, ask.push and ask.claims[1], rawset)
  return place
end

function entering.enter(ask, place, queued, turns, known)
  local joins = record.held()
  local fence = joins and door.last or math.max(door.last + 1, now)
  record.set('last', fence)
  record.set('turns', joins and door.turns or turns)
  door.upgraded = false
  if queued then queue.drop(place) end
  if ask.more > 0 then
    place.waiting, place.window = ask.more, ask.window
    entering.put_claim(place, ask.following, rawset)
    queue.append(place, door.number + 1)
  end
  local placed = ask.more > 0
  if ask.mode == 'w' then
    local claim = ask.claims[1]
    record.set('admit_upto', 0)
    record.set('admit_until', 0)
    if not known[claim[1]] then record.put_writer(claim[1], claim[2], claim[3]) end
  else
    local comers = {}
    for _, claim in ipairs(ask.claims) do
      if not known[claim[1]] then comers[#comers + 1] = claim end
    end
    record.add_readers(comers)
  end
  if not next(known) then return {fence, now} end
  local items = {}
  for i, claim in ipairs(ask.claims) do items[i] = entering.told(claim[1]) end
  return entering.live(placed, items)
end

-- A pushed grant whose client asks or confirms: from now on its lease counts from this request.
function entering.keep_pushed(claim)
  local writer = door.writer
  writer.since, writer.dirty = now_text, true
  writer.expires = claim[2] and math.max(writer.expires, claim[2])
  door.pushed = false
  record.will_mean(writer.expires, writer.details)
  step.changed, step.regranted = true, true
end

-- Grant, queue or refuse an acquire; repeated tickets keep their grants.
function entering.acquire(ask, foreign, turns, vacate)
  local known, items = {}, {}
  if record.held() then
    for _, claim in ipairs(ask.claims) do
      local mode = record.grant_of(claim[1])
      if mode then
        if mode ~= ask.mode then return entering.refused('other mode', nil, foreign) end
        known[claim[1]] = true
        items[#items + 1] = entering.told(claim[1])
      end
    end
  end
  local place = ask.gate ~= '' and queue.place_of(ask.gate, ask.mode) or nil
  local queued = place ~= nil
  if #items == #ask.claims and not door.pushed then return entering.live(place, items) end
  if ask.confirms and not items[1] then
    turn.drop_claims(ask.claims[1][1], ask.gate)
    return {-3, door.last, door.endings}
  end
  if place then entering.refresh(place, ask) else place = entering.newcomer(ask) end
  if items[1] and door.pushed then
    entering.keep_pushed(ask.claims[1])
    return entering.enter(ask, place, queued, turns, known)
  end
  if not seat.bars(foreign, ask.mode) and not vacate and turn.may_enter(place, ask.policy) then
    return entering.enter(ask, place, queued, turns, known)
  end
  if not ask.may_queue then
    local wait = turn.retry_after(place, foreign)
    return entering.refused(entering.why_not(ask, foreign), wait, foreign)
  end
  if not queued then
    if ask.max_waiters and queue.sums.waiting >= ask.max_waiters then
      return entering.refused('full', nil, foreign)
    end
    queue.append(place, place.number)
  end
  if items[1] then return entering.live(true, items) end
  return {WAITS, ask.gate, ask.mode}
end

-- Undo an acquire, whether it was granted, queued or never carried out.
function entering.withdraw(gate, mode, keep, upgrader, tickets, foreign)
  local was_held = {}
  for _, ticket in ipairs(tickets) do
    if door.pushed and door.writer.ticket == ticket then
      -- What is given back is offered anew, to the client's other tasks.
      for _, place in ipairs(queue.called('other')) do
        if place.ticket == ticket then record.alter(place, 'claim_until', nil) end
      end
    end
    turn.drop_claims(ticket, gate)
    if record.held() and record.grant_of(ticket) then
      seat.drop(ticket)
      was_held[#was_held + 1] = ticket
    end
  end
  if foreign then
    for _, ticket in ipairs(tickets) do
      local taken
      foreign, taken = seat.take_out(foreign, ticket, '')
      if taken then was_held[#was_held + 1] = ticket end
    end
  end
  if door.slot and door.slot.ticket == upgrader then
    door.slot = nil
    step.changed = true
  end
  if not keep then
    local place = queue.place_of(gate, mode)
    if place then queue.drop(place) end
  end
  return foreign, was_held
end
