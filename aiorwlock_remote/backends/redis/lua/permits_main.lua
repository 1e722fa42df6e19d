-- Carry out the command ARGV[2]; its arguments, and the answers, are those of main.lua but
-- for these:
--
--   a   acquire, and e with one claim: the policy of an ask is the limit
--   d, u  downgrade and upgrade are illegal for a permit, as c, w and h are
--
--   {fence, now}                              granted, all claims: this fence, and each next
--                                             claim has the next
--   {0, now, has_entry, last, grant...}          granted, these (ticket since expires details
--                                             fence limit)
--   {-1, ahead, retry_after, now, limit, holder...}  waiting
--   {now, 0, p, since expires details fence limit}   adopted
--   {last, endings, grant or 0...}            renewed (p since expires details fence limit)
-- A holder is p and its details.

local function illegal()
  error({err = 'ILLEGAL a semaphore and a lock are two resources'})
end

local function claim_at(i)
  return {ticket = ARGV[i], lease = tonumber(ARGV[i + 1]), details = ARGV[i + 2],
    who = match(ARGV[i + 2], '^[^,]*,[^,]*,(.*)$')}
end

local function ask_at(text, first, count)
  local limit, may_queue, more, waiting, most, life, window, client_id = match(text,
    '^p,(%d+),(%d+),(%d+),(%d+),(%-?%d*),(%d+),(%d+),(.*)$')
  if not limit then illegal() end
  local claims = {}
  for i = 1, count do claims[i] = claim_at(first + 3 * (i - 1)) end
  return {limit = tonumber(limit), may_queue = may_queue == '1', who = claims[1].who,
    more = tonumber(more), waiting = tonumber(waiting), max_waiters = tonumber(most),
    entry_ttl = tonumber(life),
    window = tonumber(window), client_id = client_id == '=' and own or client_id, claims = claims}
end

local function renew_all(foreign)
  local answer = {doorman.last, doorman.endings}
  for i = 4, #ARGV, 2 do
    local permit = record.permit_of(ARGV[i])
    if permit then
      permits.renew(permit, tonumber(ARGV[i + 1]))
      answer[#answer + 1] = permits.grant_item(permit)
      answer[#answer][1] = 'p'
    else
      foreign = permits.take_out(foreign, ARGV[i])
      answer[#answer + 1] = 0
    end
  end
  return foreign, answer
end

local function carry_out(foreign)
  if op == 'a' or op == 'e' then
    return foreign, permits.acquire(ask_at(ARGV[4], 5, (#ARGV - 4) / 3), foreign)
  elseif op == 'r' then
    local asks, i = {}, 6
    while ARGV[i] do
      local count = tonumber(ARGV[i])
      asks[#asks + 1] = ask_at(ARGV[i + 1], i + 2, count)
      i = i + 2 + 3 * count
    end
    return permits.release(ARGV[5], ARGV[4], asks, foreign)
  elseif op == 't' then
    return permits.withdraw(ARGV[7], ARGV[5] == '1', {unpack(ARGV, 8)}, foreign)
  elseif op == 'n' then
    return renew_all(foreign)
  elseif op == 'o' or op == 'd' or op == 'u' then
    if op ~= 'o' and record.permit_of(ARGV[4]) then illegal() end
    local claim, answer = claim_at(5), record.not_held()
    if op == 'o' then answer = permits.adopt(ARGV[4], claim) end
    if answer[1] == -3 then -- not held: neither of both tickets is a grant any more
      foreign = permits.take_out(foreign, ARGV[4])
      foreign = permits.take_out(foreign, claim.ticket)
    end
    return foreign, answer
  elseif op == 'f' then
    return foreign, permits.force(ARGV[4], tonumber(ARGV[5]))
  end
  local broken = foreign and foreign.value == ARGV[4] -- op s
  if broken then foreign = nil end
  return foreign, broken and 1 or 0
end

-- Return the answer; compute the one of a waiting client, now that the step is done.
local function settled(answer, foreign)
  if type(answer) ~= 'table' or answer[1] ~= WAITS then return answer end
  local entry = queue.entry_of(answer[2], 'p')
  local wait = entry.claim_until and 0 or permits.retry_after(entry, foreign)
  local limit = permits.limit_for(entry)
  return {-1, queue.ahead(entry), wait, now, limit, unpack(record.describe(foreign))}
end

if not match(op, '^[aertnodufs]$') then illegal() end
local foreign = permits.foreign_record()
permits.expire()
permits.reconcile()
local answer
foreign, answer = carry_out(foreign)
local woken = foreign and {} or permits.offer()
if op == 'r' then
  for i = 5, #answer do answer[i] = settled(answer[i], foreign) end
else
  answer = settled(answer, foreign)
end
local own_wakeup = save.wake_clients(woken)
save.write(foreign)
if save.refusal then error(save.refusal) end
if own_wakeup then return {-9, answer} end
return answer
