-- Acquire and withdraw, as in core/transition.py.

local acquiring = {}

local WAITS = {} -- marks an answer that main.lua's settled() computes at the end

function acquiring.live(has_entry, items)
  return {0, now, has_entry and 1 or 0, doorman.last, unpack(items)}
end

-- Return a grant as an answer shows it: ticket, since, expiry or -1, details.
function acquiring.grant_item(ticket)
  local _, expires = record.grant_of(ticket)
  local since, details = record.details_of(ticket)
  return {ticket, tonumber(since), expires or -1, details}
end

function acquiring.refusal_reason(ask, foreign)
  if foreign then return 'held' end
  if doorman.barred_until > now then return 'barred' end
  local shared = ask.mode == 'r' and not doorman.writer
  return record.held() and not shared and 'held' or 'ahead'
end

function acquiring.refused(why, wait, foreign)
  return {-2, why, wait or -1, unpack(record.describe(foreign))}
end

-- The claim that an offer to this entry may grant, or none.
function acquiring.put_claim(entry, claim, put)
  if not claim or not claim[4] or record.delay_in(claim[3]) > 0 then
    put(entry, 'ticket', '')
    put(entry, 'lease', 0)
    return
  end
  local holder, who = match(claim[3], '^([^,]*),[^,]*,(.*)$')
  put(entry, 'ticket', claim[1])
  put(entry, 'lease', claim[4])
  put(entry, 'holder', holder)
  put(entry, 'who', who)
end

function acquiring.new_entry(ask)
  local entry = {field = ask.mode .. ':' .. ask.client_id, mode = ask.mode,
    client_id = ask.client_id, number = doorman.number + 1, since = now_text, limit = 0,
    lease = 0, holder = '', waiting = ask.waiting, expires = now + ask.entry_ttl,
    window = ask.window, who = ask.who}
  acquiring.put_claim(entry, ask.push and ask.claims[1], rawset)
  return entry
end

function acquiring.enter(ask, entry, queued, turns, known)
  local joins = record.held()
  local fence = joins and doorman.last or math.max(doorman.last + 1, now)
  record.set('last', fence)
  record.set('turns', joins and doorman.turns or turns)
  doorman.upgraded = false
  if queued then queue.drop(entry) end
  if ask.more > 0 then
    entry.waiting, entry.window = ask.more, ask.window
    acquiring.put_claim(entry, ask.following, rawset)
    queue.append(entry, doorman.number + 1)
  end
  local has_entry = ask.more > 0
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
  for i, claim in ipairs(ask.claims) do items[i] = acquiring.grant_item(claim[1]) end
  return acquiring.live(has_entry, items)
end

-- A pushed grant whose client asks or confirms: from now on its lease counts from this request.
function acquiring.keep_pushed(claim)
  local writer = doorman.writer
  writer.since, writer.dirty = now_text, true
  writer.expires = claim[2] and math.max(writer.expires, claim[2])
  doorman.pushed = false
  record.will_mean(writer.expires, writer.details)
  step.changed, step.regranted = true, true
end

-- Grant, queue or refuse an acquire; repeated tickets keep their grants.
function acquiring.acquire(ask, foreign, turns, vacate)
  local known, items = {}, {}
  if record.held() then
    for _, claim in ipairs(ask.claims) do
      local mode = record.grant_of(claim[1])
      if mode then
        if mode ~= ask.mode then return acquiring.refused('other mode', nil, foreign) end
        known[claim[1]] = true
        items[#items + 1] = acquiring.grant_item(claim[1])
      end
    end
  end
  local entry = ask.client_id ~= '' and queue.entry_of(ask.client_id, ask.mode) or nil
  local queued = entry ~= nil
  if #items == #ask.claims and not doorman.pushed then return acquiring.live(entry, items) end
  if ask.confirms and not items[1] then
    admission.drop_claims(ask.claims[1][1], ask.client_id)
    return {-3, doorman.last, doorman.endings}
  end
  if entry then
    record.refresh(entry, ask)
    acquiring.put_claim(entry, ask.push and ask.claims[1], record.alter)
  else
    entry = acquiring.new_entry(ask)
  end
  if items[1] and doorman.pushed then
    acquiring.keep_pushed(ask.claims[1])
    return acquiring.enter(ask, entry, queued, turns, known)
  end
  if not mutex.bars(foreign, ask.mode) and not vacate
    and admission.may_enter(entry, ask.policy) then
    return acquiring.enter(ask, entry, queued, turns, known)
  end
  if not ask.may_queue then
    local wait = admission.retry_after(entry, foreign)
    return acquiring.refused(acquiring.refusal_reason(ask, foreign), wait, foreign)
  end
  if not queued then
    if ask.max_waiters and queue.sums.waiting >= ask.max_waiters then
      return acquiring.refused('full', nil, foreign)
    end
    queue.append(entry, entry.number)
  end
  if items[1] then return acquiring.live(true, items) end
  return {WAITS, ask.client_id, ask.mode}
end

-- Undo an acquire, whether it was granted, queued or never carried out.
function acquiring.withdraw(client_id, mode, keep, upgrader, tickets, foreign)
  local was_held = {}
  for _, ticket in ipairs(tickets) do
    if doorman.pushed and doorman.writer.ticket == ticket then
      -- What is given back is offered anew, to the client's other tasks.
      for _, entry in ipairs(queue.called('other')) do
        if entry.ticket == ticket then record.alter(entry, 'claim_until', nil) end
      end
    end
    admission.drop_claims(ticket, client_id)
    if record.held() and record.grant_of(ticket) then
      mutex.drop(ticket)
      was_held[#was_held + 1] = ticket
    end
  end
  if foreign then
    for _, ticket in ipairs(tickets) do
      local taken
      foreign, taken = mutex.take_out(foreign, ticket, '')
      if taken then was_held[#was_held + 1] = ticket end
    end
  end
  if doorman.upgrader and doorman.upgrader.ticket == upgrader then
    doorman.upgrader = nil
    step.changed = true
  end
  if not keep then
    local entry = queue.entry_of(client_id, mode)
    if entry then queue.drop(entry) end
  end
  return foreign, was_held
end
