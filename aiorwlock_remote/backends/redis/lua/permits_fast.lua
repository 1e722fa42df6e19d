-- Short cuts for the commonest steps at a semaphore, as those of a lock in fast.lua: they do
-- exactly what the rest of the script would do. Unusual cases fall through to the rest, with
-- nothing changed yet. Conditions of all short cuts: nobody waits, no lock delay runs, all
-- holders have one limit and live, the keys have a TTL. In addition, for
--
--   e  one permit with this limit is free
--   r  one of our permits is given back
--
-- `stored` by number: 2 last, 3 number, 4 seat, 5 limits, 6 queue, 7 barred_until, 9 keep.
-- Damaged values and keys of another type fall through, too, as in fast.lua. Writes come in
-- the order of record.lua.

local last, keep = tonumber(stored[2]), tonumber(stored[9])
local barred = stored[7] or ''

if stored[1] == '1' and last and keep and (stored[6] or '') == ''
  and (op == 'e' or op == 'r' and not ARGV[6] and (ARGV[4] == '' or ARGV[4] == 'p'))
  and not string.find(stored[2] .. stored[9] .. (stored[3] or '') .. barred, '%D')
  and last < 2 ^ 53 - 1 and keep < 2 ^ 53
  and (barred == '' or (tonumber(barred) or now) < now) then
  local our_mutex, limits = stored[4] or '', stored[5] or ''
  local match, ceil, try = string.match, math.ceil, redis.pcall
  local held, limit, latest = try('ZCARD', PERMITS), nil, nil
  if our_mutex ~= '' then
    local count
    limit, count = match(limits, '^([1-9]%d*):([1-9]%d*)$')
    local first = try('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')
    if tonumber(count) ~= held or not match(our_mutex, '^permits,%d+$')
      or try('GET', MUTEX) ~= our_mutex
      or not match(first[2] or '', '^%d+$') or tonumber(first[2]) <= now then
      held = nil
    end
  elseif held ~= 0 or try('GET', MUTEX) then
    held = nil
  end

  if held and op == 'e' then
    local most = match(ARGV[4], '^p,([1-9]%d*),')
    local ends = now + ARGV[6]
    local ms = ceil(ends / 1000)
    local text = format('%d', ends)
    if held > 0 then latest = try('ZRANGE', PERMITS, -1, -1, 'WITHSCORES')[2] end
    if most and (limit or most) == most and held < tonumber(most)
      and keep >= ms + ARGV[1] / 1000
      and (held == 0 or match(latest or '', '^%d+$'))
      and try('ZADD', PERMITS, 'NX', text, ARGV[5]) == 1 then
      local fence, fence_text = now, now_text
      if last >= now then fence, fence_text = last + 1, format('%d', last + 1) end
      if held == 0 then our_mutex = 'permits,' .. clock[1] end
      if held == 0 then call('PEXPIREAT', PERMITS, stored[9]) end
      call('HSET', STATE, 'last', fence_text, 'seat', our_mutex, 'updated', now_text,
        'limits', format('%s:%d', most, held + 1), 'permit:' .. ARGV[5],
        format('%s,%s,%s,%s', fence_text, most, now_text, ARGV[7]))
      if held == 0 or ends > tonumber(latest) then
        call('SET', MUTEX, our_mutex, 'PXAT', format('%d', ms))
      end
      return {fence, now}
    end

  elseif held and held > 0 and op == 'r' then
    local others = try('ZRANGE', PERMITS, -2, -1, 'WITHSCORES')
    latest = others[#others]
    if others[#others - 1] == ARGV[5] then latest = others[#others - 2] end
    local permit = try('HGET', STATE, 'permit:' .. ARGV[5])
    if type(permit) == 'string' and match(permit, '^%d+,(%d+),%d+,%x+,%d+,%[') == limit
      and not string.find((others[2] or '-') .. (others[4] or ''), '%D') then
      local field, answer = 'permit:' .. ARGV[5], nil
      if held == 1 then
        answer = try('DEL', MUTEX)
        call('HSET', STATE, 'seat', '', 'was', type(answer) == 'table' and our_mutex or '',
          'limits', '', 'updated', now_text, field, '')
      else
        call('HSET', STATE, 'limits', format('%s:%d', limit, held - 1), 'updated', now_text,
          field, '')
      end
      call('HDEL', STATE, field)
      call('ZREM', PERMITS, ARGV[5])
      if held > 1 then call('SET', MUTEX, our_mutex, 'PXAT', format('%d', ceil(latest / 1000))) end
      if type(answer) == 'table' then error(answer) end
      return 1
    end
  end
end
