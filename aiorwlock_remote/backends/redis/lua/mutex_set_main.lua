-- Carry out the command; mutex_set.lua documents ARGV and the answers.

check()
local answers = {}

if kind == 'a' then
  for i = 7, #ARGV, 4 do
    local lease = tonumber(ARGV[i + 2])
    answers[#answers + 1] = ask(ARGV[5], tonumber(ARGV[6]), ARGV[i], ARGV[i + 1], lease,
      ARGV[i + 3])
    wake_next(lease)
  end
elseif kind == 'r' then
  local name, lease = held(ARGV[5])
  if name then
    if ARGV[6] == '1' then call('ZREM', SET, name) else call('ZADD', SET, 0, name) end
    forget(ARGV[5], name)
    wake_next(lease)
  end
  answers[1] = name and {1} or {0, lease}
elseif kind == 'n' then
  for i = 5, #ARGV do
    local name, lease, score = held(ARGV[i])
    answers[#answers + 1] = name and {write(name, ARGV[i], lease, score)} or {0, lease}
  end
elseif kind == 't' then
  local lease, number = tonumber(ARGV[5]), tonumber(ARGV[6])
  for i = 7, 6 + number do leave(ARGV[i]) end
  for i = 7 + number, #ARGV do
    local name = held(ARGV[i])
    if name then
      call('ZADD', SET, 0, name)
      forget(ARGV[i], name)
    end
  end
  wake_next(lease)
elseif kind == 'c' then
  answers[1] = call('ZADD', SET, 'NX', 0, ARGV[6])
  if answers[1] == 1 then wake_next(tonumber(ARGV[5])) end
elseif kind == 'd' then
  answers[1] = call('ZREM', SET, ARGV[5])
end
return {own_wakeups, unpack(answers)}
