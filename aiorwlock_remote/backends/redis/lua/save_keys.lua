-- The TTLs of the keys, and the end of the mutex key: the scripts of locks and of semaphores
-- have them.

local save = {}

-- Return until when (ms) the keys are kept; before: the stored `keep`. They live a quarter
-- longer than needed, so that their TTL is seldom set. ends: of the last grant.
function save.kept_until(before, ends)
  local keep = record.text_in(before)
  step.horizon = math.max(step.horizon, queue.sums.latest, doorman.barred_until, ends or 0)
  -- A key whose TTL has passed within the step would be created again, without a TTL.
  local needed = math.max((step.horizon + ARGV[1]) / 1000, now / 1000 + 1000)
  if (tonumber(keep) or 0) >= needed then return keep end
  return format('%d', math.ceil(needed + ARGV[1] / 4000))
end

function save.keep_keys(keep)
  for i = 2, 4 do
    if keep == 'never' then call('PERSIST', KEYS[i])
    else call('PEXPIREAT', KEYS[i], keep) end
  end
end

-- Delete the mutex key. If the server refuses that, the release is written all the same, and
-- the next step deletes the key by `was`; main.lua returns the error.
function save.delete_key()
  local answer = redis.pcall('DEL', MUTEX)
  if type(answer) == 'table' then save.refusal, save.was = answer, step.outdated or mutex_value end
  step.outdated = false
end
