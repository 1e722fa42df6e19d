-- Checks of what is stored: the scripts of locks and of semaphores begin with them.

local match, sub = string.match, string.sub

local record = {}

-- Whatever a step reads is checked before its first write: else a release that meets a
-- damaged reader would have dropped its own one already (test_damaged_state.py).
function record.damaged(key, field)
  local shown = string.gsub(sub(field, 1, 40), '[^%w_:.-]', '?')
  error({err = 'BADRECORD ' .. key .. ': field ' .. shown .. ' is damaged'})
end

local MOST = 2 ^ 53 - 2 -- one more is exact, too

function record.fits(digits)
  return match(digits, '^%d+$') ~= nil and tonumber(digits) <= MOST
end

function record.number_in(text, what)
  if not text or text == '' then return 0 end
  if not record.fits(text) then record.damaged(STATE, what) end
  return tonumber(text)
end

-- holder,lock_delay,who: codec.py writes and reads them.
function record.details_fit(text)
  local delay, who = match(text, '^%x+,(%d+),(%[.*%])$')
  if not who or string.find(who, '%c') or not record.fits(delay) then return false end
  local fine, found = pcall(cjson.decode, who)
  return fine and type(found[1]) == 'string' and type(found[2]) == 'number'
    and found[2] % 1 == 0 and type(found[3]) == 'string' and type(found[4]) == 'string'
end

-- Return the beginning of a ticket, for messages: a ticket is a secret.
function record.some_of(ticket)
  return sub(ticket, 1, math.min(4, math.floor(#ticket / 4))) .. '...'
end

function record.text_in(text)
  return text and text ~= '' and text or nil
end

-- Return the score of a holder's ticket, {ticket, score}: microseconds, or inf.
function record.score_in(scored)
  local text = scored[2]
  if text ~= 'inf' and not record.fits(text) then
    record.damaged(KEYS[3], 'score of ' .. record.some_of(scored[1]))
  end
  return tonumber(text)
end
