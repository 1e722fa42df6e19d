-- Carry out the step above. A key of another type than ours is told by its name: a
-- command at it fails before anything is written, as each key is read first.

local READS = {TYPES}
local OURS = {GET = 'a string', HGET = 'a hash', ZCARD = 'a sorted set', SCARD = 'a set'}

local done, answer = pcall(step)
if done then return answer end
local text = type(answer) == 'table' and answer.err or tostring(answer)
local word = string.match(text, '^%-?(%u+) ')
if word == 'WRONGTYPE' then
  for i, read in ipairs(READS) do
    local found = redis.pcall(unpack({read, KEYS[i], read == 'HGET' and '' or nil}))
    if type(found) == 'table' and found.err then
      return redis.error_reply('BADRECORD ' .. KEYS[i] .. ' is not ' .. OURS[read])
    end
  end
end
if word then return redis.error_reply(text) end
return error(text, 0)
