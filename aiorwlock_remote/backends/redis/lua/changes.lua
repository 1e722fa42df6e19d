-- Changes of what was read: the scripts of locks and of semaphores have them.

if queue[2] then
  table.sort(queue, function(a, b) return a.number < b.number end)
end

function record.set(name, value)
  if door[name] ~= value then
    door[name] = value
    step.changed = true
  end
end

function record.alter(place, name, value)
  if place[name] ~= value then
    place[name] = value
    place.dirty = true
    step.changed = true
  end
end

function record.drop_place(i)
  step.gone_places[#step.gone_places + 1] = table.remove(queue, i).field
  step.changed = true
end
