-- Carry out the command ARGV[2]; its arguments, and the answers:
--
--   a   acquire. ask, then for each claim: ticket lease details
--   w   acquire one writer, while no other task of its client waits (see fast.lua)
--   e   acquire one reader, under the same condition
--   c   acquire, confirming a pushed grant; one claim, perhaps that of the next task
--   r   release. mode ticket, then for each acquire carried along: how many claims, ask,
--       claims
--   h   release, carrying along one writer of the same client
--   t   withdraw. mode keep(0/1) upgrader client_id ticket...
--   n   renew. for each: ticket lease, or -lease: also if it ends earlier than before
--   d   downgrade. ticket, claim
--   u   upgrade. ticket claim entry_ttl (0: do not wait) client_id
--   o   adopt. ticket, claim
--   f   force. holder fence
--   s   force, a foreign mutex record. value
--
-- mode is r, w or empty; a lease is microseconds, or empty: never ends; client_id is the
-- client whose queue entry it is; details are holder,lock_delay,who. An ask is
-- mode,policy,may_queue,more,waiting,max_waiters,entry_ttl,window,client_id, where the client_id
-- `=` is the caller's own id. may_queue is a sum: 1 the client may queue, 2 its claim may be
-- pushed, 4 it confirms, 8 the last claim is that of its next task, for the entry of `more`.
--
-- Answers:
--   {fence, now}                         granted, all claims, just now
--   {0, now, has_entry, fence, grant...}    granted, these (ticket since expires details)
--   {-1, ahead, retry_after, now, holder...}  waiting
--   {-2, why, retry_after, holder...}    refused
--   {-3, last, endings}                  not held (also to an acquire that confirms)
--   {-4}                                 another reader upgrades already
--   {now, fence, grant}                  adopted (mode since expires details)
--   {-5, held, last, endings, answer...} released; in short 1, or {fence, now} with
--                                        the one carried along
--   {ticket...}                          withdrawn, these were held
--   {last, endings, grant or 0...}       renewed (mode since expires details)
--   1 or 0                               forced or not
-- A holder is r or w and its details, or f and the ticket of a foreign mutex record. -1: never.

local function claim_at(i)
  local lease = tonumber(ARGV[i + 1])
  return {ARGV[i], lease and now + lease, ARGV[i + 2], lease}
end

local function ask_at(text, first, count)
  local mode, policy, may_queue, more, waiting, limit, life, window, client_id = match(text,
    '^(%a),(%a+),(%d+),(%d+),(%d+),(%-?%d*),(%d+),(%d+),(.*)$')
  local claims = {}
  for i = 1, count do claims[i] = claim_at(first + 3 * (i - 1)) end
  local flags, following = tonumber(may_queue), nil
  if flags >= 8 then following, flags = table.remove(claims), flags - 8 end
  return {mode = mode, policy = policy, may_queue = flags % 2 == 1, push = flags % 4 > 1,
    confirms = flags > 3, following = following,
    more = tonumber(more), waiting = tonumber(waiting), max_waiters = tonumber(limit),
    entry_ttl = tonumber(life), window = tonumber(window),
    client_id = client_id == '=' and own or client_id, claims = claims,
    who = match(claims[1][3], '^[^,]*,[^,]*,(.*)$')}
end

local function illegal()
  local ticket, new = ARGV[4], ARGV[5]
  if op == 'd' and mutex.will_stay(new) ~= 'r' and mutex.will_stay(ticket) == 'r' then
    return 'only a writer can be downgraded'
  end
  if op == 'u' and mutex.will_stay(new) ~= 'w' and mutex.will_stay(ticket) == 'w' then
    return 'only a reader can be upgraded'
  end
end

local function carry_out(foreign)
  if op == 'w' or op == 'e' or op == 'a' or op == 'c' then
    local ask = ask_at(ARGV[4], 5, (#ARGV - 4) / 3)
    local answer = acquiring.acquire(ask, foreign, 0, false)
    if answer[1] == -3 then foreign = mutex.take_out(foreign, ARGV[5], '') end
    return foreign, answer
  elseif op == 'r' or op == 'h' then
    local asks, i = {}, 6
    while ARGV[i] do
      local count = tonumber(ARGV[i])
      asks[#asks + 1] = ask_at(ARGV[i + 1], i + 2, count)
      i = i + 2 + 3 * count
    end
    return ending.release(ARGV[5], ARGV[4], asks, foreign)
  elseif op == 't' then
    return acquiring.withdraw(ARGV[7], ARGV[4], ARGV[5] == '1', ARGV[6], {unpack(ARGV, 8)},
      foreign)
  elseif op == 'n' then
    local answer = {doorman.last, doorman.endings}
    for i = 4, #ARGV, 2 do
      local renewed = ending.renew(ARGV[i], tonumber(ARGV[i + 1]))
      if renewed == 0 then foreign = mutex.take_out(foreign, ARGV[i], '') end
      answer[#answer + 1] = renewed
    end
    answer[2] = doorman.endings
    return foreign, answer
  elseif op == 'd' or op == 'u' or op == 'o' then
    local answer
    admission.confirm(ARGV[4])
    if op == 'd' then
      answer = moves.downgrade(ARGV[4], claim_at(5))
    elseif op == 'u' then
      local life = tonumber(ARGV[8])
      answer = moves.upgrade(ARGV[4], claim_at(5), ARGV[9], life > 0 and life, foreign)
    else
      answer = moves.adopt(ARGV[4], claim_at(5))
    end
    if answer[1] == -3 then -- not held: neither of both tickets is a grant any more
      foreign = mutex.take_out(foreign, ARGV[4], '')
      foreign = mutex.take_out(foreign, ARGV[5], '')
    end
    return foreign, answer
  elseif op == 'f' then
    return foreign, ending.force(ARGV[4], tonumber(ARGV[5]))
  end
  return mutex.force(foreign, ARGV[4])
end

-- Return the answer; compute the one of a waiting client, now that the step is done.
local function settled(answer, foreign)
  if type(answer) ~= 'table' or answer[1] ~= WAITS then return answer end
  local entry = queue.entry_of(answer[2], answer[3])
  local holders = record.describe(foreign)
  if not entry then return {-1, 0, -1, now, unpack(holders)} end
  local wait = entry.claim_until and 0 or admission.retry_after(entry, foreign)
  return {-1, queue.ahead(entry), wait, now, unpack(holders)}
end

-- Return the tickets that a command names, and whether the answer may show holders.
local function named()
  local tickets = {}
  local function add(first, last, by)
    for i = first, last, by do tickets[#tickets + 1] = ARGV[i] end
  end
  if op == 'n' then
    add(4, #ARGV, 2)
  elseif op == 't' then
    add(8, #ARGV, 1)
  elseif op == 'r' or op == 'h' then
    add(5, 5, 1)
    local i = 6
    while ARGV[i] do
      local after = i + 2 + 3 * ARGV[i]
      add(i + 2, after - 1, 3)
      i = after
    end
    return tickets, ARGV[6] ~= nil
  elseif op == 'u' or op == 'd' or op == 'o' then
    add(4, 5, 1)
    return tickets, op == 'u'
  elseif op ~= 'f' and op ~= 's' then
    add(5, #ARGV, 3)
    return tickets, true
  end
  return tickets, false
end

local wrong = illegal()
if wrong then return redis.error_reply('ILLEGAL ' .. wrong) end
record.check_readers(named())
local foreign = mutex.foreign_record()
mutex.expire()
mutex.reconcile()
if not foreign then admission.settle() elseif mutex.bars(foreign, 'r') then admission.suspend() end
local answer, woken = 1, {unreachable}
if not unreachable then -- else fast.lua has carried it out
  foreign, answer = carry_out(foreign)
  woken = foreign and {} or admission.offer()
end
if not unreachable and (op == 'r' or op == 'h') then
  for i = 5, #answer do answer[i] = settled(answer[i], foreign) end
else
  answer = settled(answer, foreign)
end
local own_wakeup = save.wake_clients(woken, own)
save.write(foreign)
if save.refusal then error(save.refusal) end
if own_wakeup then return {-9, answer, unpack(own_wakeup)} end
return answer
