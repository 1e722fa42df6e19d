-- Read a key that must be of this type; for another type, raise an error that names it.

local function typed(ours, command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if string.find(found.err, 'WRONGTYPE', 1, true) then
    error({err = 'BADRECORD ' .. key .. ' is not a ' .. ours})
  end
  return error(found)
end

