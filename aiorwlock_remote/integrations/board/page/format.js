// Pure functions of the page: no document, no clock. Times are seconds.

export function span(seconds) {
  const size = Math.abs(seconds);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (size >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return size < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

export function leaseLeft(holder, now) {
  if (holder.ends === null) return "never ends";
  const left = holder.ends - now;
  return left > 0 ? `${span(left)} left` : `ended ${span(-left)} ago`;
}

export function waiting(view) {
  const count = { write: 0, read: 0, permit: 0 };
  for (const one of view.queue) count[one.mode] += one.tasks;
  return ["write", "read", "permit"]
    .filter((mode) => count[mode])
    .map((mode) => `${count[mode]} ${mode}`)
    .join(", ");
}

export const tasksWaiting = (view) => view.queue.reduce((sum, one) => sum + one.tasks, 0);
// Blocks others, and no lease will end it: the board says of which.
export const isLeft = (view) => view.holders.some((one) => one.left);
export const isFree = (view) => view.freed !== undefined;

// An expired lease blocks nobody.
export const isHeld = (view, now) =>
  view.holders.some((one) => one.ends === null || one.ends > now);

// All leases ran out: nothing is to be done, whoever asks next gets it.
export const isOver = (view, now) => view.holders.length > 0 && !isHeld(view, now);

// What no lease will free first, as in `rwlock ls`; then the longest wait, then held, then
// what is over, then free; ties by name.
function urgency(view, now) {
  if (isFree(view)) return [4, -view.freed];
  if (isLeft(view)) return [0, 0];
  if (view.queue.length) return [1, Math.min(...view.queue.map((one) => one.since))];
  return [isOver(view, now) ? 3 : 2, 0];
}

// Numbers in a name count as numbers: order/9 comes before order/10.
const sortKey = (view) => (view.key ??= view.name.replace(/\d+/g, (digits) => digits.padStart(16, "0")));

function byName(a, b) {
  const [x, y] = [sortKey(a), sortKey(b)];
  return x < y ? -1 : x > y ? 1 : a.row < b.row ? -1 : 1;
}

export function order(views, how, now) {
  if (how === "name") return views.sort(byName);
  const keys = new Map();
  for (const view of views) {
    const held = view.holders.filter((one) => one.ends === null || one.ends > now);
    const oldest = () => Math.min(...held.map((one) => one.since));
    keys.set(view, how === "oldest" ? [held.length ? 0 : 1, oldest()] : urgency(view, now));
  }
  return views.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    return x[0] - y[0] || (x[1] === y[1] ? 0 : x[1] - y[1]) || byName(a, b);
  });
}

export function haystack(view) {
  const of = (one) => `${one.who}\n${one.why}\n${one.holder ?? ""}`;
  return [view.name, ...view.holders.map(of), ...view.queue.map(of)].join("\n").toLowerCase();
}

// The grants and waits of a row between two times, each with a lane: those that overlap
// lie one above the other, waits below all grants.
export function lanes(view, ended, from, now, most) {
  const bars = [];
  for (const one of ended) {
    bars.push({ ...one, kind: one.wait ? "wait" : one.mode, from: one.since });
  }
  for (const one of view.holders) {
    bars.push({ ...one, kind: one.mode, from: one.since, to: now, open: true });
  }
  for (const one of view.queue) {
    bars.push({ ...one, kind: "wait", wait: true, from: one.since, to: now, open: true });
  }
  const shown = bars.filter((bar) => bar.to > from).sort((a, b) => a.from - b.from);
  const place = (wanted, first, limit) => {
    const ends = [];
    for (const bar of wanted) {
      let lane = ends.findIndex((end) => end <= bar.from + 0.05);
      if (lane < 0) lane = Math.min(ends.length, limit - 1);
      ends[lane] = Math.max(ends[lane] ?? 0, bar.to);
      bar.lane = first + lane;
    }
    return ends.length;
  };
  const grants = shown.filter((bar) => !bar.wait);
  const waits = shown.filter((bar) => bar.wait);
  const used = Math.max(place(grants, 0, most), 1);
  const below = place(waits, used, most);
  return { bars: shown, grants: used, waits: below };
}
