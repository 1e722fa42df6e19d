-- Short cuts for a writer that nobody disputes the resource with: exactly what the rest
-- of the script would do, before it is even put together. Whatever is unusual falls
-- through; nothing has been changed then.

if stored[1] == '1' then
  local seat, writer = stored[4] or '', stored[5] or ''
  if (stored[6] or '') == '' and (stored[8] or '') == '' then -- no place, no upgrader
    if op == 'w' then
      local last, keep = tonumber(stored[2] or 0), tonumber(stored[15])
      local barred = stored[7] or ''
      if seat == '' and last and keep
        and (barred == '' or (tonumber(barred) or now + 1) <= now) then
        local value = ARGV[5] .. ',' .. clock[1]
        local ends = now + ARGV[6]
        local ms = math.ceil(ends / 1000)
        if not call('SET', SEAT, value, 'NX', 'GET', 'PXAT', ms) then
          local fence = last + 1
          if fence < now then fence = now end
          call('HSET', STATE, 'last', fence, 'seat', value, 'updated', now, 'writer',
            string.format('%s,%.0f,%.0f,%s', ARGV[5], now, ends, ARGV[7]))
          local memory = ARGV[1] / 1000
          if keep < ms + memory then
            keep = math.ceil(ms + memory * 1.25)
            call('PEXPIREAT', STATE, keep)
            call('HSET', STATE, 'keep', keep)
          end
          if (stored[10] or '') ~= '' or (stored[12] or '') ~= ''
            or (stored[13] or '') ~= '' then
            call('HSET', STATE, 'admit_upto', '', 'admit_until', '', 'turns', '',
              'upgraded', '')
          end
          return {fence, now}
        end
      end
    elseif op == 'r' and writer ~= '' and not ARGV[6] and (stored[13] or '') == '' then
      local ticket, expires = string.match(writer, '^([^,]*),%d+,(%d+),')
      if ticket == ARGV[5] and tonumber(expires) > now and ARGV[4] ~= 'r'
        and stored[15] ~= 'never' and call('GET', SEAT) == seat then
        call('DEL', SEAT)
        local number = stored[3] or ''
        if number == '' then
          call('HSET', STATE, 'seat', '', 'writer', '', 'updated', now)
        else
          call('HSET', STATE, 'seat', '', 'writer', '', 'updated', now,
            'admit_upto', number, 'admit_until', '')
        end
        local endings = stored[9] or ''
        if endings == '' then return 1 end
        return {1, tonumber(stored[2]), endings}
      end
    end
  end
end
