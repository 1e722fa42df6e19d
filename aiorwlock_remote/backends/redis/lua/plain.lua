-- The shortest way: a writer takes the free resource, or leaves it, while nothing but these
-- seven fields is of interest. The steps do exactly what fast.lua and the rest would do.
--
-- `plain` is the time of the step that found nothing else of interest, while `updated` is the
-- same. Then
--
--   * nobody waits, upgrades or reads, no lock delay runs, no grant is pushed, `was` is empty;
--   * of a held resource, admit_upto, admit_until and turns are empty; of a free one, admit_upto
--     is `number`, the others are empty.
--
-- Each other step empties the field with its HSET (differential.py checks what it promises
-- behind each command). `updated` is compared as well, as a program that does not know the field
-- leaves it behind, but writes that time. The mutex key is looked at in any case.

if op == 'w' or op == 'r' and not ARGV[6] and ARGV[4] ~= 'r' then
  local match, try = string.match, redis.pcall
  -- An error, as for a key of another type, has no items; the long way tells it.
  local plain, updated, last, keep, number, mutex, writer = unpack(try('HMGET', STATE, 'plain',
    'updated', 'last', 'keep', 'number', 'seat', 'writer'))
  if not plain or plain == '' or plain ~= updated
    or not match((last or '') .. ',' .. (keep or '') .. ',' .. (number or ''), '^%d+,%d+,%d*$')
    or last + 0 >= 2 ^ 53 - 1 or keep + 0 >= 2 ^ 53 then -- the long way
  elseif op == 'w' and mutex == '' and writer == '' then
    local fence, fence_text, ends = now, now_text, now + ARGV[6]
    if last + 0 >= now then fence, fence_text = last + 1, format('%d', last + 1) end
    local ms = math.ceil(ends / 1000)
    local value = ARGV[5] .. ',' .. clock[1]
    if keep + 0 >= ms + ARGV[1] / 1000
      and not try('SET', MUTEX, value, 'NX', 'GET', 'PXAT', format('%d', ms)) then
      writer = ARGV[5] .. ',' .. now_text .. ',' .. format('%d', ends) .. ',' .. ARGV[7]
      local answer
      if (number or '') == '' then
        answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
          'writer', writer, 'plain', now_text)
      else
        answer = try('HSET', STATE, 'last', fence_text, 'seat', value, 'updated', now_text,
          'writer', writer, 'plain', now_text, 'admit_upto', '')
      end
      if type(answer) == 'table' then
        try('DEL', MUTEX)
        error(answer)
      end
      return {fence, now}
    end
  elseif op == 'r' and mutex and writer then
    local ticket, expires = match(writer, '^([^,]*),%d+,(%d+),')
    if ticket == ARGV[5] and expires + 0 > now and try('GET', MUTEX) == mutex then
      local answer = try('DEL', MUTEX)
      if type(answer) == 'table' then
        call('HSET', STATE, 'seat', '', 'was', mutex, 'updated', now_text, 'writer', '',
          'plain', '', 'admit_upto', number or '')
        error(answer)
      elseif (number or '') == '' then
        call('HSET', STATE, 'seat', '', 'updated', now_text, 'writer', '', 'plain', now_text)
      else
        call('HSET', STATE, 'seat', '', 'updated', now_text, 'writer', '', 'plain', now_text,
          'admit_upto', number)
      end
      return 1
    end
  end
end
