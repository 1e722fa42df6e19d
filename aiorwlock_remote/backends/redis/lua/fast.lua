-- Short cuts for the commonest steps: they do exactly what the rest of the script would
-- do. Unusual cases fall through to the rest, with nothing changed yet. Conditions of all
-- short cuts: no upgrader waits, no lock delay runs, no grant is pushed (but c, w, a), the keys
-- have a TTL. In addition, for
--
--   w  a free resource, its queue is empty or has this client for this mode only
--   r  our writer or one of our readers leaves, the queue is empty
--   r  our writer leaves; the queue has only writers, none of them called, and the oldest,
--      another client's, is pushed its claim
--   c  a writer confirms its pushed grant; nobody in the queue has been called but itself
--   w, a  a writer waits, or waits on, while another has the lock; nobody in the queue has
--      been called, but for the one to whom the lock is pushed
--   h  our writer leaves to another task of its client, no other client queues
--   e  a reader enters or joins, the queue is empty
--
-- `stored` by number: 2 last, 3 number, 4 seat, 5 writer, 6 queue, 9 endings,
-- 10 admit_upto, 11 admit_until, 12 turns, 13 upgraded, 14 keep (ms), 15 pushed, 16 readers,
-- 17 was, 18 plain.
--
-- Writes come in the order of record.lua, with an exception for w and h: a writer's mutex key
-- comes before the state, as SET NX is also the look whether the lock is free, and a local
-- hand-over needs no `was` then. If the state cannot be written, the key is set back; if that
-- is refused as well, the key has a TTL, and the writer's ticket, which withdraws it.
--
-- Damaged values and keys of another type fall through, too: `try` returns an error
-- instead of a value, which fits no condition. record.lua reports the damage.

local barred = stored[7] or ''
local odd = string.find((stored[2] or '-') .. (stored[3] or '') .. barred
  .. (stored[10] or '') .. (stored[11] or '') .. (stored[12] or '') .. (stored[14] or '-')
  .. (stored[16] or '') .. (stored[18] or ''), '%D')
local keep = tonumber(stored[14])
local pushed = stored[15] or ''
local last = tonumber(stored[2])

if stored[1] == '1' and not odd and keep and last and (stored[8] or '') == ''
  and (stored[13] or '') == '' and (pushed == '' or op == 'c' or op == 'w' or op == 'a')
  and last < 2 ^ 53 - 1 and keep < 2 ^ 53
  and (barred == '' or (tonumber(barred) or now) < now) then
  local our_mutex, writer, queue_text = stored[4] or '', stored[5] or '', stored[6] or ''
  local own_entry = 'place:w:' .. own
  local match, sub, ceil, try = string.match, string.sub, math.ceil, redis.pcall
  local memory = ARGV[1] / 1000
  local fence, fence_text = now, now_text
  if last >= now then fence, fence_text = last + 1, format('%d', last + 1) end

  -- Undo the SET of the mutex key if the next write was refused.
  local function take(answer)
    if type(answer) == 'table' then
      try('DEL', MUTEX)
      error(answer)
    end
  end

  -- The last holder leaves: delete the mutex key, and write these fields of the state.
  local function leave(...)
    local answer = try('DEL', MUTEX)
    if type(answer) == 'table' then
      call('HSET', STATE, 'seat', '', 'was', our_mutex, 'updated', now_text, 'plain', '', ...)
      error(answer)
    elseif (stored[17] or '') ~= '' then
      call('HSET', STATE, 'seat', '', 'was', '', 'updated', now_text, 'plain', '', ...)
    else
      call('HSET', STATE, 'seat', '', 'updated', now_text, 'plain', '', ...)
    end
    return 1
  end

  -- Our entry has left; its field is empty already.
  local function remove_own_entry()
    call('HDEL', STATE, own_entry)
    call('ZREM', QUEUE, 'w:' .. own)
  end

  local sums, entry_in, text_of, hand_over
  if queue_text ~= '' or op == 'w' or op == 'a' then
    -- Return the sums (see queue.lua), or nil if an entry may have expired, or they are damaged.
    function sums()
      if queue_text == '' then return {0, 0, 0, 0, 2 ^ 53 - 2, 0} end
      local found = {match(queue_text, '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),0,0$')}
      for i, digits in ipairs(found) do
        if #digits > 15 and (#digits > 16 or digits > '9007199254740990') then return nil end
        found[i] = tonumber(digits)
      end
      return found[1] and found[5] > now and found or nil
    end

    function text_of(found)
      return format('%d,%d,%d,%d,%d,%d,0,0', unpack(found))
    end

    -- Return the parts of a entry: number, since, expires, window, waiting, claim_until, who.
    function entry_in(text)
      local parts = {match(type(text) == 'string' and text or '',
        '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d*),(%["[^%c]*%])$')}
      for i = 1, #parts - 1 do
        if #parts[i] > 15 and (#parts[i] > 16 or parts[i] > '9007199254740990') then
          return nil
        end
      end
      return parts[1] and parts
    end

    -- Release our writer, and push the lock to the next. Return whether that was possible; false
    -- after a change only if `unreachable` is set.
    function hand_over()
      local found = sums()
      local turns = tonumber(stored[12]) or 0
      if not found or found[3] ~= 0 or found[4] ~= 0 or turns >= MAX_LOCAL_TURNS
        or (stored[9] or '') ~= '' then
        return false
      end
      -- A reader would come before all writers.
      local field = try('ZRANGE', QUEUE, 0, 0)[1] or ''
      local head = match(field, '^w:.') and entry_in(try('HGET', STATE, 'place:' .. field))
      if not head or head[6] ~= '' then return false end
      local client_id = sub(field, 3)
      local who, ticket, lease, holder = match(head[7],
        '^(%[.*),"([^"\\]+)",(%d+),"(%x+)"%]$')
      lease = tonumber(lease)
      if client_id == own or match(client_id, ':') or ticket == ARGV[5] or not lease or lease == 0
        or lease > 2 ^ 53 then
        return false
      end
      local ends = now + math.min(tonumber(head[4]), lease)
      if ends <= now or keep < math.max(found[6], ends) / 1000 + memory
        or try('GET', MUTEX) ~= our_mutex then
        return false
      end
      local value = ticket .. ',' .. clock[1]
      head[6] = format('%d', ends)
      found[4] = 1
      call('HSET', STATE, 'place:' .. field, table.concat(head, ','), 'queue', text_of(found),
        'last', fence_text, 'seat', value, 'was', our_mutex, 'updated', now_text,
        'writer', format('%s,%s,%s,%s,0,%s]', ticket, now_text, head[6], holder, who),
        'turns', format('%d', turns + 1), 'pushed', fence_text,
        'admit_upto', stored[3] or '', 'admit_until', '')
      call('SET', MUTEX, value, 'PXAT', format('%d', ceil(ends / 1000)))
      local text = now_text .. ',' .. head[6] .. ',' .. fence_text
      local proof = redis.sha1hex(ticket .. ',' .. text)
      if try(wake and 'SPUBLISH' or 'PUBLISH', (wake or 'rwlock.wake/') .. client_id,
        MUTEX .. ' ' .. text .. ',' .. proof) ~= 0 then
        return true
      end
      unreachable = client_id
      stored = read_state()
      return false
    end
  end

  if op == 'w' and our_mutex == '' and writer == '' and pushed == ''
    and (queue_text == '' or sub(queue_text, 1, 2) == '1,') then
    local entry = queue_text ~= '' and match(ARGV[4], '=$')
      and tostring(try('HGET', STATE, own_entry))
    local value = ARGV[5] .. ',' .. clock[1]
    local ends = now + ARGV[6]
    local ms = ceil(ends / 1000)
    if keep >= ms + memory
      and (queue_text == '' or entry
        and tonumber(match(entry, '^%d+,%d+,(%d+),%d+,%d+,%d*,') or 0) > now)
      and not try('SET', MUTEX, value, 'NX', 'GET', 'PXAT', format('%d', ms)) then
      local writer = format('%s,%s,%d,%s', ARGV[5], now_text, ends, ARGV[7])
      local plain = barred .. (stored[16] or '') .. (stored[17] or '') == '' and now_text or ''
      take(try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
        'writer', writer, 'admit_upto', '', 'admit_until', '', 'turns', '', 'plain', plain,
        unpack(entry and {'queue', '', own_entry, ''} or {})))
      if entry then remove_own_entry() end
      return {fence, now}
    end

  elseif (op == 'r' and not ARGV[6] or op == 'h') and our_mutex ~= '' and writer ~= '' then
    local ticket, expires = match(writer, '^([^,]*),%d+,(%d+),')
    if ticket == ARGV[5] and tonumber(expires) > now and ARGV[4] ~= 'r' then
      if op == 'r' then
        if queue_text == '' and try('GET', MUTEX) == our_mutex then
          local number = stored[3] or ''
          if number == '' then return leave('writer', '') end
          return leave('writer', '', 'admit_upto', number, 'admit_until', '')
        elseif queue_text ~= '' and hand_over() then
          return 1
        end
      elseif ARGV[8] ~= ticket and (stored[9] or '') == '' then
        local more, life, window = match(ARGV[7],
          '^%a,%a+,%d+,(%d+),%d+,%-?%d*,(%d+),(%d+),=$')
        local who = match(ARGV[10], '^[^,]*,[^,]*,(.*)$')
        if ARGV[11] then -- the claim of the next task; no lease or a delay: none of these
          local holder, text = match(ARGV[13], '^(%x+),0,(.*)%]$')
          who = holder and tonumber(ARGV[12])
            and format('%s,"%s",%s,"%s"]', text, ARGV[11], ARGV[12], holder)
        end
        local turns = (tonumber(stored[12]) or 0) + 1
        local entry = sub(queue_text, 1, 2) == '1,' and tostring(try('HGET', STATE, own_entry))
        local since, until_us
        if entry then
          since, until_us = match(entry, '^%d+,(%d+),(%d+),%d+,%d+,%d*,')
        end
        local ends = now + ARGV[9]
        local ms = ceil(ends / 1000)
        if who and turns <= MAX_LOCAL_TURNS and (tonumber(stored[3]) or 0) < 2 ^ 53 - 2
          and keep >= math.max(ends, now + life) / 1000 + memory
          and (queue_text == '' and more == '0' or entry and tonumber(until_us or 0) > now)
          and try('GET', MUTEX) == our_mutex then
          local value = ARGV[8] .. ',' .. clock[1]
          local number = nil
          if more ~= '0' then
            number = format('%d', (tonumber(stored[3]) or 0) + 1)
            call('ZADD', QUEUE, number, 'w:' .. own)
          end
          call('SET', MUTEX, value, 'PXAT', format('%d', ms))
          writer = format('%s,%s,%d,%s', ARGV[8], now_text, ends, ARGV[10])
          local answer
          if number then
            answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
              'writer', writer, 'turns', format('%d', turns), 'number', number,
              own_entry, format('%s,%s,%d,%s,%s,,%s', number, since, now + life, window, more,
                who),
              'queue', format('1,%s,0,0,%d,%d,0,0', more, now + life, now + life))
          else
            answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
              'writer', writer, 'turns', format('%d', turns), 'plain', '',
              unpack(entry and {'queue', '', own_entry, ''} or {}))
          end
          if type(answer) == 'table' then
            try('SET', MUTEX, our_mutex, 'PXAT', format('%d', ceil(expires / 1000)))
            error(answer)
          end
          if entry and not number then remove_own_entry() end
          return {fence, now}
        end
      end
    end

  elseif op == 'c' and pushed == stored[2] and queue_text ~= '' then
    local ticket, expires, details = match(writer, '^([^,]*),%d+,(%d+),(%x+,0,%[.*%])$')
    local more, life, window = match(ARGV[4],
      '^w,%a+,%d+,(%d+),%d+,%-?%d*,(%d+),(%d+),=$')
    local who = match(ARGV[7], '^[^,]*,[^,]*,(.*)$')
    if ARGV[8] then
      local holder, text = match(ARGV[10], '^(%x+),0,(.*)%]$')
      who = holder and tonumber(ARGV[9])
        and format('%s,"%s",%s,"%s"]', text, ARGV[8], ARGV[9], holder)
    end
    local found, mine
    if ticket == ARGV[5] and tonumber(expires) > now and more and who then
      found = sums()
      mine = found and entry_in(try('HGET', STATE, own_entry))
    end
    local ends = math.max(tonumber(expires) or 0, now + ARGV[6])
    if mine and found[3] == 0 and found[4] == (mine[6] == '' and 0 or 1)
      and (stored[9] or '') == '' and (tonumber(stored[3]) or 0) < 2 ^ 53 - 2
      and keep >= math.max(found[6], more ~= '0' and now + life or 0, ends) / 1000 + memory
      and try('GET', MUTEX) == our_mutex then
      local ends_text = format('%d', ends)
      writer = format('%s,%s,%s,%s', ticket, now_text, ends_text, details)
      found[2], found[4] = found[2] - mine[5] + more, 0
      if more == '0' then
        found[1] = found[1] - 1
        call('HSET', STATE, 'updated', now_text, 'writer', writer, 'pushed', '',
          'admit_upto', '', 'admit_until', '', 'queue', found[1] > 0 and text_of(found) or '',
          own_entry, '')
        remove_own_entry()
      else
        local number = format('%d', (tonumber(stored[3]) or 0) + 1)
        found[5], found[6] = math.min(found[5], now + life), math.max(found[6], now + life)
        call('ZADD', QUEUE, number, 'w:' .. own)
        call('HSET', STATE, own_entry, format('%s,%s,%d,%s,%s,,%s', number, mine[2],
          now + life, window, more, who), 'updated', now_text, 'writer', writer, 'pushed', '',
          'admit_upto', '', 'admit_until', '', 'number', number, 'queue', text_of(found))
      end
      call('SET', MUTEX, our_mutex, 'PXAT', format('%d', ceil(ends / 1000)))
      return {0, now, more == '0' and 0 or 1, last, {ticket, now, ends, details}}
    end

  elseif (op == 'w' or op == 'a') and writer ~= '' then
    local flags, waiting, limit, life, window = match(ARGV[4],
      '^w,%a+,(%d+),%d+,(%d+),(%-?%d*),(%d+),(%d+),=$')
    local ticket, expires, details = match(writer, '^([^,]*),%d+,(%d+),(%x+,%d+,%[.*%])$')
    local holder, who = match(ARGV[7], '^(%x+),0,(.*)%]$')
    flags = tonumber(flags or 0) % 8 -- 8: a claim of the next task, which this step leaves out
    local found = (flags == 1 or flags == 3) and who and tonumber(ARGV[6]) and details
      and ticket ~= ARGV[5] and tonumber(expires) > now and sums()
    if found and found[3] ~= 0 then found = nil end
    if found and pushed ~= '' then
      -- The entry that was called is the one with the pushed ticket.
      local first = found[4] == 1 and pushed == stored[2] and try('ZRANGE', QUEUE, 0, 0)[1]
      local head = first and entry_in(try('HGET', STATE, 'place:' .. first))
      local claim = head and head[6] ~= '' and match(head[7], '"([^"\\]+)",%d+,"%x+"%]$')
      if claim ~= ticket or first == 'w:' .. own then found = nil end
    elseif found and found[4] ~= 0 then
      found = nil
    end
    local text, mine, number, since = nil, nil, nil, nil
    if found then
      text = queue_text ~= '' and try('HGET', STATE, own_entry)
      mine = text and entry_in(text)
    end
    if mine then
      number, since, window = mine[1], mine[2], math.max(mine[4], window)
    elseif found and not text and (limit == '' or found[2] < tonumber(limit)) then
      number = format('%d', (tonumber(stored[3]) or 0) + 1)
      since = now_text
    end
    local until_us = now + (life or 0)
    if number and (tonumber(stored[3]) or 0) < 2 ^ 53 - 2 and not (mine and mine[6] ~= '')
      and keep >= math.max(found[6], until_us) / 1000 + memory
      and try('GET', MUTEX) == our_mutex then
      local ahead = found[1]
      local new = format('%s,%s,%d,%d,%s,,%s', number, since, until_us, window, waiting,
        flags == 3 and format('%s,"%s",%s,"%s"]', who, ARGV[5], ARGV[6], holder) or who .. ']')
      found[2] = found[2] - (mine and mine[5] or 0) + waiting
      found[5], found[6] = math.min(found[5], until_us), math.max(found[6], until_us)
      if mine then
        ahead = call('ZCOUNT', QUEUE, 1, '(' .. number)
          + call('ZCOUNT', QUEUE, '(-' .. number, -1)
        if new ~= text then
          call('HSET', STATE, own_entry, new, 'queue', text_of(found), 'updated', now_text)
        end
      else
        found[1] = found[1] + 1
        call('ZADD', QUEUE, number, 'w:' .. own)
        if queue_text == '' then call('PEXPIREAT', QUEUE, stored[14]) end
        call('HSET', STATE, own_entry, new, 'queue', text_of(found), 'updated', now_text,
          'number', number, 'plain', '')
      end
      return {-1, ahead, expires - now, now, 'w' .. details}
    end

  elseif op == 'e' and writer == '' and queue_text == '' then
    local ends = now + ARGV[6]
    local ms = ceil(ends / 1000)
    if keep >= ms + memory then
      local field, text = 'reader:' .. ARGV[5], now_text .. ',' .. ARGV[7]
      if our_mutex ~= '' then
        local first = try('ZRANGE', READERS, 0, 0, 'WITHSCORES')[2]
        if first and tonumber(first) > now and (stored[16] or '') ~= ''
          and try('GET', MUTEX) == our_mutex
          and try('ZADD', READERS, 'NX', format('%d', ends), ARGV[5]) == 1 then
          call('HSET', STATE, 'updated', now_text, field, text,
            'readers', format('%d', stored[16] + 1))
          if call('ZRANGE', READERS, -1, -1)[1] == ARGV[5] then
            call('SET', MUTEX, our_mutex, 'PXAT', format('%d', ms))
          end
          return {last, now}
        end
      elseif not try('GET', MUTEX)
        and try('ZADD', READERS, 'NX', format('%d', ends), ARGV[5]) == 1 then
        local value = 'readers,' .. clock[1]
        call('PEXPIREAT', READERS, stored[14])
        call('HSET', STATE, 'last', fence_text, 'seat', value, 'turns', '',
          'updated', now_text, field, text, 'readers', '1', 'plain', '')
        call('SET', MUTEX, value, 'PXAT', format('%d', ms))
        return {fence, now}
      end
    end

  elseif op == 'r' and not ARGV[6] and our_mutex ~= '' and queue_text == '' and ARGV[4] ~= 'w' then
    local first = try('ZRANGE', READERS, 0, 0, 'WITHSCORES')
    local ends = try('ZRANGE', READERS, -2, -1, 'WITHSCORES')
    local field = 'reader:' .. ARGV[5]
    if first[2] and tonumber(first[2]) > now
      and not string.find((ends[2] or '-') .. (ends[4] or ''), '%D')
      and try('GET', MUTEX) == our_mutex then
      local count = tonumber(stored[16])
      if count == 1 and not ends[4] and first[1] == ARGV[5] then
        leave('readers', '', field, '')
        call('HDEL', STATE, field)
        call('ZREM', READERS, ARGV[5])
        return 1
      elseif count and count > 1 and ends[4] and try('ZSCORE', READERS, ARGV[5]) then
        call('HSET', STATE, 'updated', now_text, 'readers', format('%d', count - 1), field, '')
        call('HDEL', STATE, field)
        call('ZREM', READERS, ARGV[5])
        local latest = ends[4]
        if ends[3] == ARGV[5] then latest = ends[2] end
        call('SET', MUTEX, our_mutex, 'PXAT', format('%d', ceil(latest / 1000)))
        return 1
      end
    end
  end
end
