-- Changes of what was read: the scripts of locks and of semaphores have them.

function record.set(name, value)
  if door[name] ~= value then
    door[name] = value
    step.changed = true
  end
end

function record.alter(place, name, value)
  if place[name] ~= value then
    queue.subtract(place)
    place[name] = value
    queue.add(place)
    queue.touch(place)
  end
end
