-- Short cuts for the commonest steps: they do exactly what the rest of the script would
-- do. Unusual cases fall through to the rest, with nothing changed yet. Conditions of all
-- short cuts: no upgrader waits, no lock delay runs, no grant is pushed (but c), the keys have
-- a TTL. In addition, for
--
--   w  a free resource, its queue is empty or has this client for this mode only
--   r  our writer or one of our readers leaves, the queue is empty
--   r  our writer leaves; the queue has only writers, none of them called, and the oldest,
--      another client's, is pushed its claim
--   c  a writer confirms its pushed grant; nobody in the queue has been called but itself
--   h  our writer leaves to another task of its client, no other client queues
--   e  a reader enters or joins, the queue is empty
--
-- `stored` by number: 2 last, 3 number, 4 seat, 5 writer, 6 places, 9 endings,
-- 10 admit_upto, 11 admit_until, 12 turns, 13 upgraded, 14 keep (ms), 15 pushed, 16 readers,
-- 17 was.
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
  .. (stored[16] or ''), '%D')
local keep = tonumber(stored[14])
local pushed = stored[15] or ''
local last = tonumber(stored[2])

if stored[1] == '1' and not odd and keep and last and (stored[8] or '') == ''
  and (stored[13] or '') == '' and (pushed == '' or op == 'c')
  and last < 2 ^ 53 - 1 and keep < 2 ^ 53
  and (barred == '' or (tonumber(barred) or now) < now) then
  local seat, writer, places = stored[4] or '', stored[5] or '', stored[6] or ''
  local match, sub, ceil, try = string.match, string.sub, math.ceil, redis.pcall
  local memory = ARGV[1] / 1000
  local fence, fence_text = now, now_text
  if last >= now then fence, fence_text = last + 1, format('%d', last + 1) end

  -- Undo the SET of the mutex key if the next write was refused.
  local function take(answer)
    if type(answer) == 'table' then
      try('DEL', SEAT)
      error(answer)
    end
  end

  -- The last holder leaves: delete the mutex key, and write these fields of the state.
  local function leave(...)
    local answer = try('DEL', SEAT)
    if type(answer) == 'table' then
      call('HSET', STATE, 'seat', '', 'was', seat, 'updated', now_text, ...)
      error(answer)
    elseif (stored[17] or '') ~= '' then
      call('HSET', STATE, 'seat', '', 'was', '', 'updated', now_text, ...)
    else
      call('HSET', STATE, 'seat', '', 'updated', now_text, ...)
    end
    return 1
  end

  local entries, hand_over
  if places ~= '' then
    -- Return the queue, unsorted, and when the last of its entries expires; nil if one of them is
    -- not as these short cuts need it, or is damaged.
    function entries()
      local flat, found, most = try('HGETALL', QUEUE), {}, 0
      if flat.err or #flat ~= 2 * tonumber(places) then return nil end
      for i = 1, #flat, 2 do
        local field, entry = flat[i], {}
        for j, part in ipairs({match(flat[i + 1],
          '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d*),(%["[^%c]*%])$')}) do
          if j < 7 and #part > 15 and (#part > 16 or part > '9007199254740990') then
            return nil
          end
          entry[j] = part
        end
        local expires = tonumber(entry[3])
        if not expires or expires <= now or not match(field, '^[rw]:.') then return nil end
        if entry[6] ~= '' and field ~= 'w:' .. own then return nil end
        most = math.max(most, expires)
        entry.field = field
        found[i / 2 + 0.5] = entry
      end
      return found, most
    end

    -- Release our writer, and push the lock to the next. Return whether that was possible; false
    -- after a change only if `unheard` is set.
    function hand_over()
      local queued, most = entries()
      local turns = tonumber(stored[12]) or 0
      if not queued or turns >= SEAT_TURNS or (stored[9] or '') ~= '' then return false end
      local head, first
      for _, entry in ipairs(queued) do
        local number = tonumber(entry[1])
        if sub(entry.field, 1, 1) ~= 'w' or entry[6] ~= '' then return false end
        if not first or number < first then head, first = entry, number end
      end
      local gate = sub(head.field, 3)
      local who, ticket, lease, holder = match(head[7],
        '^(%[.*),"([^"\\]+)",(%d+),"(%x+)"%]$')
      lease = tonumber(lease)
      if gate == own or match(gate, ':') or ticket == ARGV[5] or not lease or lease == 0
        or lease > 2 ^ 53 then
        return false
      end
      local ends = now + math.min(tonumber(head[4]), lease)
      if ends <= now or keep < math.max(most, ends) / 1000 + memory
        or try('GET', SEAT) ~= seat then
        return false
      end
      local value = ticket .. ',' .. clock[1]
      head[6] = format('%d', ends)
      call('HSET', QUEUE, head.field, table.concat(head, ','))
      call('HSET', STATE, 'last', fence_text, 'seat', value, 'was', seat,
        'updated', now_text,
        'writer', format('%s,%s,%s,%s,0,%s]', ticket, now_text, head[6], holder, who),
        'turns', format('%d', turns + 1), 'pushed', fence_text,
        'admit_upto', stored[3] or '', 'admit_until', '')
      call('SET', SEAT, value, 'PXAT', format('%d', ceil(ends / 1000)))
      local text = now_text .. ',' .. head[6] .. ',' .. fence_text
      local proof = redis.sha1hex(ticket .. ',' .. text)
      if try(wake and 'SPUBLISH' or 'PUBLISH', (wake or 'rwlock.wake/') .. gate,
        SEAT .. ' ' .. text .. ',' .. proof) ~= 0 then
        return true
      end
      unheard = gate
      stored = read_state()
      return false
    end
  end

  if op == 'w' and seat == '' and writer == '' and (places == '' or places == '1') then
    local place = places == '1' and match(ARGV[4], '=$')
      and tostring(try('HGET', QUEUE, 'w:' .. own))
    local value = ARGV[5] .. ',' .. clock[1]
    local ends = now + ARGV[6]
    local ms = ceil(ends / 1000)
    if keep >= ms + memory
      and (places == '' or place
        and tonumber(match(place, '^%d+,%d+,(%d+),%d+,%d+,%d*,') or 0) > now)
      and not try('SET', SEAT, value, 'NX', 'GET', 'PXAT', format('%d', ms)) then
      if place then take(try('HDEL', QUEUE, 'w:' .. own)) end
      local writer = format('%s,%s,%d,%s', ARGV[5], now_text, ends, ARGV[7])
      if place or (stored[10] or '') ~= '' or (stored[12] or '') ~= '' then
        take(try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
          'writer', writer, 'places', '', 'admit_upto', '', 'admit_until', '', 'turns', ''))
      else
        take(try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
          'writer', writer))
      end
      return {fence, now}
    end

  elseif (op == 'r' and not ARGV[6] or op == 'h') and seat ~= '' and writer ~= '' then
    local ticket, expires = match(writer, '^([^,]*),%d+,(%d+),')
    if ticket == ARGV[5] and tonumber(expires) > now and ARGV[4] ~= 'r' then
      if op == 'r' then
        if places == '' and try('GET', SEAT) == seat then
          local number = stored[3] or ''
          if number == '' then return leave('writer', '') end
          return leave('writer', '', 'admit_upto', number, 'admit_until', '')
        elseif match(places, '^[1-9]%d?%d?$') and hand_over() then
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
        local place = places == '1' and tostring(try('HGET', QUEUE, 'w:' .. own))
        local since, until_us
        if place then
          since, until_us = match(place, '^%d+,(%d+),(%d+),%d+,%d+,%d*,')
        end
        local ends = now + ARGV[9]
        local ms = ceil(ends / 1000)
        if who and turns <= SEAT_TURNS and (tonumber(stored[3]) or 0) < 2 ^ 53 - 2
          and keep >= math.max(ends, now + life) / 1000 + memory
          and (places == '' and more == '0' or place and tonumber(until_us or 0) > now)
          and try('GET', SEAT) == seat then
          local value = ARGV[8] .. ',' .. clock[1]
          local number = nil
          if more ~= '0' then
            number = format('%d', (tonumber(stored[3]) or 0) + 1)
            call('HSET', QUEUE, 'w:' .. own, format('%s,%s,%d,%s,%s,,%s', number, since,
              now + life, window, more, who))
          elseif place then
            call('HDEL', QUEUE, 'w:' .. own)
          end
          call('SET', SEAT, value, 'PXAT', format('%d', ms))
          writer = format('%s,%s,%d,%s', ARGV[8], now_text, ends, ARGV[10])
          local answer
          if number then
            answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
              'writer', writer, 'turns', format('%d', turns), 'number', number)
          else
            answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
              'writer', writer, 'turns', format('%d', turns), 'places', '')
          end
          if type(answer) == 'table' then
            try('SET', SEAT, seat, 'PXAT', format('%d', ceil(expires / 1000)))
            error(answer)
          end
          return {fence, now}
        end
      end
    end

  elseif op == 'c' and pushed == stored[2] and match(places, '^[1-9]%d?%d?$') then
    local ticket, expires, details = match(writer, '^([^,]*),%d+,(%d+),(%x+,0,%[.*%])$')
    local more, life, window = match(ARGV[4],
      '^w,%a+,%d+,(%d+),%d+,%-?%d*,(%d+),(%d+),=$')
    local who = match(ARGV[7], '^[^,]*,[^,]*,(.*)$')
    if ARGV[8] then
      local holder, text = match(ARGV[10], '^(%x+),0,(.*)%]$')
      who = holder and tonumber(ARGV[9])
        and format('%s,"%s",%s,"%s"]', text, ARGV[8], ARGV[9], holder)
    end
    local queued, most
    if ticket == ARGV[5] and tonumber(expires) > now and more and who then
      queued, most = entries()
    end
    local mine
    for _, entry in ipairs(queued or {}) do
      if entry.field == 'w:' .. own then mine = entry end
    end
    local ends = math.max(tonumber(expires) or 0, now + ARGV[6])
    most = math.max(most or 0, more ~= '0' and now + (life or 0) or 0)
    if mine and (stored[9] or '') == '' and (tonumber(stored[3]) or 0) < 2 ^ 53 - 2
      and keep >= math.max(most, ends) / 1000 + memory and try('GET', SEAT) == seat then
      local ends_text = format('%d', ends)
      writer = format('%s,%s,%s,%s', ticket, now_text, ends_text, details)
      if more == '0' then
        call('HDEL', QUEUE, mine.field)
        call('HSET', STATE, 'updated', now_text, 'writer', writer, 'pushed', '',
          'admit_upto', '', 'admit_until', '',
          'places', places == '1' and '' or format('%d', places - 1))
      else
        local number = format('%d', (tonumber(stored[3]) or 0) + 1)
        call('HSET', QUEUE, mine.field, format('%s,%s,%d,%s,%s,,%s', number, mine[2],
          now + life, window, more, who))
        call('HSET', STATE, 'updated', now_text, 'writer', writer, 'pushed', '',
          'admit_upto', '', 'admit_until', '', 'number', number)
      end
      call('SET', SEAT, seat, 'PXAT', format('%d', ceil(ends / 1000)))
      return {0, now, more == '0' and 0 or 1, last, {ticket, now, ends, details}}
    end

  elseif op == 'e' and writer == '' and places == '' then
    local ends = now + ARGV[6]
    local ms = ceil(ends / 1000)
    if keep >= ms + memory then
      local field, text = 'reader:' .. ARGV[5], now_text .. ',' .. ARGV[7]
      if seat ~= '' then
        local first = try('ZRANGE', READERS, 0, 0, 'WITHSCORES')[2]
        if first and tonumber(first) > now and (stored[16] or '') ~= ''
          and try('GET', SEAT) == seat
          and try('ZADD', READERS, 'NX', format('%d', ends), ARGV[5]) == 1 then
          call('HSET', STATE, 'updated', now_text, field, text,
            'readers', format('%d', stored[16] + 1))
          if call('ZRANGE', READERS, -1, -1)[1] == ARGV[5] then
            call('SET', SEAT, seat, 'PXAT', format('%d', ms))
          end
          return {last, now}
        end
      elseif not try('GET', SEAT)
        and try('ZADD', READERS, 'NX', format('%d', ends), ARGV[5]) == 1 then
        local value = 'readers,' .. clock[1]
        call('PEXPIREAT', READERS, stored[14])
        call('HSET', STATE, 'last', fence_text, 'seat', value, 'turns', '',
          'updated', now_text, field, text, 'readers', '1')
        call('SET', SEAT, value, 'PXAT', format('%d', ms))
        return {fence, now}
      end
    end

  elseif op == 'r' and not ARGV[6] and seat ~= '' and places == '' and ARGV[4] ~= 'w' then
    local first = try('ZRANGE', READERS, 0, 0, 'WITHSCORES')
    local ends = try('ZRANGE', READERS, -2, -1, 'WITHSCORES')
    local field = 'reader:' .. ARGV[5]
    if first[2] and tonumber(first[2]) > now
      and not string.find((ends[2] or '-') .. (ends[4] or ''), '%D')
      and try('GET', SEAT) == seat then
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
        call('SET', SEAT, seat, 'PXAT', format('%d', ceil(latest / 1000)))
        return 1
      end
    end
  end
end
