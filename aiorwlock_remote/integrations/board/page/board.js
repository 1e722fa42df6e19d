// The live page of a store's locks. Names and reasons are written by other programs:
// they get into the document by textContent only, and no markup is made of text.

import {
  haystack, isFree, isHeld, isLeft, isOver, lanes, leaseLeft, order, span, tasksWaiting, waiting,
} from "./format.js";

const STRIP_SECONDS = 120;
const DETAIL_SECONDS = 900;
const MAX_SPANS = 400; // of a row; the board keeps fewer
const OVERSCAN = 6; // rows above and below the screen
const MAX_LOG = 40;
const RETRY_SECONDS = 2;
const HIDDEN_SECONDS = 20; // after which a hidden page looks no more
const SILENT_SECONDS = 20; // after which the board itself must be away
const SVG = "http://www.w3.org/2000/svg";

// The place of the page. Without the login that it may have been opened with
// (https://user:password@host/): a browser refuses requests to such an address.
const place = new URL("./", location.href);
place.username = place.password = "";
const address = (path) => new URL(path, place);

const byId = (id) => document.getElementById(id);
const meta = (name) => document.querySelector(`meta[name="board-${name}"]`).content;
const mayBreak = meta("break") === "yes";

// A row has the same name in the boards of all processes of an application; its history
// is what the one board saw that sends the events.
const views = new Map(); // by the row's name, as the next two
const histories = new Map(); // ended grants and waits
const drawn = new Map(); // elements of the rows on the screen
let gaps = [];
let log = [];
let sorted = []; // what passes the filter, in order
let status = { asOf: null, trouble: "", troubleSince: null };
let clock = { board: 0, here: performance.now() };
let last = ""; // id of the last event
let connection = "connecting"; // then "open" or "lost"
let refused = ""; // why the board takes no viewer
let heardAt = performance.now();
let show = "";
let selected = null;
let cursor = null;
let detailWindow = 300;
let typesShown = "";

const now = () => clock.board + (performance.now() - clock.here) / 1000;
const isLost = () => connection === "lost"
  || (connection === "open" && performance.now() - heardAt > SILENT_SECONDS * 1000);
// While store or board is away, time stands still at what was seen last.
const seenNow = () => (status.trouble ? status.asOf ?? now() : isLost() ? clock.board : now());
const timeOf = (at) => new Date(Date.now() - (now() - at) * 1000);
const clockText = (at) => timeOf(at).toLocaleTimeString("en-GB");

// ------------------------------------------------------------------ small helpers

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// -------------------------------------------------------------------- the stream

let source = null;
let retry = 0;

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(address(last ? `events?last=${encodeURIComponent(last)}` : "events"));
  source.onopen = () => { connection = "open"; heardAt = performance.now(); schedule(); };
  source.addEventListener("alive", () => { heardAt = performance.now(); });
  source.addEventListener("refused", (event) => { refused = event.data; });
  source.onmessage = (event) => {
    last = event.lastEventId;
    receive(JSON.parse(event.data));
  };
  source.onerror = () => {
    connection = "lost";
    schedule();
    // A refused stream is not opened again by the browser itself.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_SECONDS * 1000);
  };
}

let hideTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hideTimer);
  if (document.hidden) {
    hideTimer = setTimeout(() => { source?.close(); source = null; clearTimeout(retry); }, HIDDEN_SECONDS * 1000);
  } else if (source === null) {
    connection = "connecting";
    connect();
  }
});

function receive(message) {
  heardAt = performance.now();
  connection = "open";
  refused = "";
  clock = { board: message.now, here: performance.now() };
  status = message;
  if (message.full) {
    views.clear();
    histories.clear();
    log = [];
  }
  let changed = message.full || message.rows.length > 0;
  // First what is gone: a resource may have come back since.
  for (const key of message.gone ?? []) {
    changed = views.delete(key) || changed;
    histories.delete(key);
  }
  for (const view of message.rows) {
    if (view.ended) keepEnded(view.row, view.ended, message.now - DETAIL_SECONDS);
    delete view.ended;
    views.set(view.row, view);
  }
  gaps = message.gaps ?? gaps;
  for (const [key, ends] of message.renewed ?? []) {
    views.get(key)?.holders.forEach((holder, index) => { holder.ends = ends[index]; });
  }
  log = [...log, ...message.log].slice(-MAX_LOG);
  status.rows = null; // the rows are in `views`
  if (changed) arrange();
  if (changed || message.log.length) drawLog();
  schedule();
}

// --------------------------------------------------------------- filter and order

function passes(view, text, type, at) {
  if (type && view.type !== type) return false;
  const shown = { held: isHeld(view, at), waiting: view.queue.length > 0, left: isLeft(view), free: isFree(view) || isOver(view, at) };
  if (show && !shown[show]) return false;
  if (!text) return true;
  view.text ??= haystack(view);
  return view.text.includes(text);
}

function arrange() {
  const text = byId("filter").value.trim().toLowerCase();
  const type = byId("type").value;
  const at = seenNow();
  sorted = order([...views.values()].filter((view) => passes(view, text, type, at)), byId("order").value, at);
  byId("grid").setAttribute("aria-rowcount", String(sorted.length + 1));
  drawTypes();
}

function drawTypes() {
  const count = new Map();
  for (const view of views.values()) count.set(view.type, (count.get(view.type) ?? 0) + 1);
  const select = byId("type");
  if (select.value && !count.has(select.value)) count.set(select.value, 0);
  const types = [...count.keys()].sort();
  const key = JSON.stringify(types);
  if (key === typesShown) return;
  typesShown = key;
  const chosen = select.value;
  const options = types.slice(0, 500).map((type) => {
    const option = make("option", "", type || "(plain keys)");
    option.value = type;
    return option;
  });
  select.replaceChildren(select.options[0], ...options.filter((option) => option.value));
  select.value = chosen;
}

// ------------------------------------------------------------------------- drawing

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const begin = performance.now();
    draw();
    performance.clearMeasures("board-draw");
    performance.measure("board-draw", { start: begin, end: performance.now() });
  });
}

function draw() {
  drawStatus();
  drawCounts();
  drawRows();
  drawDetails();
}

function drawStatus() {
  const live = byId("live");
  const away = byId("away");
  const lost = isLost();
  const state = lost ? "lost" : connection === "connecting" ? "connecting"
    : status.trouble ? "away" : status.asOf === null ? "connecting" : "live";
  live.dataset.state = state;
  put(live, { lost: refused ? "Board full" : "Board away", connecting: "Connecting…", away: "Store away",
    live: `Live, ${status.asOf === null ? "" : clockText(status.asOf)}` }[state]);
  let told = "";
  if (lost) {
    told = refused || "The board does not answer. This page tries again by itself; what it shows may be old.";
  } else if (status.trouble) {
    const seen = status.asOf === null ? "" : ` What is shown was seen at ${clockText(status.asOf)}.`;
    told = `The store does not answer since ${clockText(status.troubleSince)}: ${status.trouble}`
      .replace(/\.?$/, (dot) => (/[?!]$/.test(status.trouble) ? "" : dot || "."))
      + ` It is asked again until it is back.${seen}`;
  }
  away.hidden = !told;
  put(away, told);
  document.body.classList.toggle("away-now", lost || Boolean(status.trouble));
}

function drawCounts() {
  const at = seenNow();
  const count = { held: 0, waiting: 0, left: 0, free: 0 };
  for (const view of views.values()) {
    if (isFree(view) || isOver(view, at)) count.free += 1;
    else if (isHeld(view, at)) count.held += 1;
    if (isLeft(view)) count.left += 1;
    count.waiting += tasksWaiting(view);
  }
  for (const button of byId("counts").children) {
    const number = count[button.dataset.show];
    put(button.firstElementChild, status.asOf === null ? "–" : number.toLocaleString("en"));
    button.setAttribute("aria-pressed", String(button.dataset.show === show));
    if (button.dataset.show === "left") button.classList.toggle("alarm", number > 0);
  }
  document.title = count.left ? `(${count.left}) Locks` : "Locks";
}

const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

function drawRows() {
  const area = byId("rows");
  const height = rowHeight();
  area.style.height = `${sorted.length * height}px`;
  const top = -area.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
  const end = Math.min(sorted.length, Math.ceil((top + innerHeight) / height) + OVERSCAN);
  const wanted = new Map();
  for (let index = first; index < end; index += 1) wanted.set(sorted[index].row, index);
  // The row with the focus stays, however far away it is.
  if (cursor !== null && !wanted.has(cursor)) {
    const index = sorted.findIndex((view) => view.row === cursor);
    if (index >= 0) wanted.set(cursor, index);
    else cursor = null;
  }
  for (const [key, element] of drawn) {
    if (!wanted.has(key)) {
      element.remove();
      drawn.delete(key);
    }
  }
  const tabbable = cursor ?? sorted[Math.max(first, 0)]?.row;
  for (const [key, index] of wanted) {
    let element = drawn.get(key);
    if (!element) {
      element = newRow(key);
      drawn.set(key, element);
      area.append(element);
    }
    element.style.transform = `translateY(${index * height}px)`;
    element.setAttribute("aria-rowindex", String(index + 2));
    element.tabIndex = key === tabbable ? 0 : -1;
    fillRow(element, views.get(key));
  }
  const empty = byId("empty");
  empty.hidden = sorted.length > 0 || status.asOf === null;
  put(empty, views.size ? "Nothing matches what is filtered." : "Nothing is held or waited for.");
}

function newRow(key) {
  const row = make("div", "row");
  row.dataset.row = key;
  row.setAttribute("role", "row");
  for (const name of ["name", "holder", "lease num", "wait", "strip"]) {
    const cell = make("div", name);
    cell.setAttribute("role", "gridcell");
    if (name !== "strip") cell.append(make("span", "one"), make("span", "two"));
    row.append(cell);
  }
  row.parts = [...row.children].map((cell) => [...cell.children]);
  row.parts[0][0].append(foreign("kind"), make("span", "slash"), foreign("id"));
  row.parts[1][0].append(make("span", "badge"), foreign());
  row.parts[1][1].dir = "auto";
  return row;
}

// Text of other programs, in the direction of its script: what does not fit is cut at its
// end, which in Arabic is on the left.
function foreign(className) {
  const element = make("bdi", className);
  element.dir = "auto";
  return element;
}

function nameParts(view) {
  const slash = view.name.indexOf("/");
  return slash < 0 ? ["", "", view.name] : [view.name.slice(0, slash), "/", view.name.slice(slash + 1)];
}

function holdersText(view) {
  const [first] = view.holders;
  if (view.holders.length === 1) return first.who || first.holder;
  const hosts = new Set(view.holders.map((one) => one.who));
  const others = view.holders.length - 1;
  return hosts.size === 1 ? first.who : `${first.who} and ${others} more`;
}

function fillRow(row, view) {
  const at = seenNow();
  const [name, holder, lease, wait] = row.parts;
  for (const [index, part] of nameParts(view).entries()) put(name[0].children[index], part);
  row.firstElementChild.title = view.name;
  put(name[1], view.limit === undefined ? "" : `semaphore, ${view.holders.length} of ${view.limit || "?"}`);
  const oldest = view.holders.reduce((a, b) => (a && a.since <= b.since ? a : b), null);
  const mode = oldest ? oldest.mode : "free";
  const badge = holder[0].children[0];
  badge.dataset.mode = mode;
  put(badge, view.holders.length > 1 ? `${view.holders.length} ${mode}s` : mode);
  put(holder[0].children[1], oldest ? holdersText(view) : view.queue.length ? "" : `for ${span(at - (view.freed ?? at))}`);
  put(holder[1], oldest ? oldest.why : "");
  // What never ends matters most, then what ends last.
  const longest = view.holders.reduce((a, b) => (a && (a.ends === null || (b.ends !== null && a.ends >= b.ends)) ? a : b), null);
  put(lease[0], longest ? leaseLeft(longest, at) : "");
  put(lease[1], oldest && isHeld(view, at) ? `for ${span(at - oldest.since)}` : "");
  put(wait[0], waiting(view));
  put(wait[1], view.queue.length ? `for ${span(at - Math.min(...view.queue.map((one) => one.since)))}` : "");
  row.className = `row${isFree(view) ? " free" : ""}${isLeft(view) ? " left" : isOver(view, at) ? " over" : ""}`;
  row.setAttribute("aria-selected", String(view.row === selected));
  drawLine(row.lastElementChild, view, STRIP_SECONDS, 26, 3);
}

// A time line: grants that overlap are stacked, waits lie below, time goes to the right.
function drawLine(place, view, seconds, height, most) {
  const at = seenNow();
  const from = at - seconds;
  const { bars, grants, waits } = lanes(view, histories.get(view.row) ?? [], from, at, most);
  const total = grants + waits * 0.5;
  const lane = Math.min((height - 4) / total, 14);
  const top = height - 4 - total * lane;
  const x = (time) => (Math.max(time, from) - from) / seconds * 1000;
  const shapes = [shape("rect", { class: "rule", x: 0, width: 1000, y: height - 0.5, height: 1 })];
  for (const [begin, end] of gaps) {
    if (end > from) shapes.push(shape("rect", { class: "bar gap", x: x(begin).toFixed(1), width: Math.max(x(end) - x(begin), 1).toFixed(1), y: height - 3, height: 3 }));
  }
  for (const bar of bars) {
    const size = bar.wait ? lane * 0.5 : lane;
    const y = top + (bar.wait ? grants * lane + (bar.lane - grants) * lane * 0.5 : bar.lane * lane);
    const piece = (begin, end, more) => {
      const width = Math.max(x(end) - x(begin), 3);
      const rect = shape("rect", { class: `bar${more}`, "data-kind": bar.kind,
        x: Math.min(x(begin), 1000 - width).toFixed(1), width: width.toFixed(1), y: y.toFixed(1), height: Math.max(size - 1.5, 2).toFixed(1) });
      const title = shape("title", {});
      title.textContent = barText(bar, at);
      rect.append(title);
      shapes.push(rect);
    };
    // A grant that no lease will end is red all the way; a lease that ran out blocks
    // nobody from its end on.
    const mayBeOver = !bar.wait && !bar.left && bar.ends !== null && (bar.open || bar.lost);
    const ends = mayBeOver ? Math.min(Math.max(bar.ends, bar.from), bar.to) : bar.to;
    if (ends > bar.from && ends > from) piece(bar.from, ends, bar.left ? " leftover" : "");
    if (bar.to > ends) piece(ends, bar.to, " over");
  }
  let svg = place.firstElementChild;
  if (!svg || svg.tagName !== "svg") {
    svg = shape("svg", { class: "line", preserveAspectRatio: "none", "aria-hidden": "true" });
    place.replaceChildren(svg);
  }
  svg.setAttribute("viewBox", `0 0 1000 ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(...shapes);
}

function barText(bar, at) {
  const what = bar.wait ? `${bar.tasks} wait to ${bar.mode === "permit" ? "get a permit" : bar.mode}` : bar.mode;
  const until = bar.open ? "now" : clockText(bar.to);
  const end = bar.lost ? ", its lease ran out" : "";
  return [`${what}  ${bar.who}`, bar.why, `${clockText(bar.from)} to ${until} (${span((bar.open ? at : bar.to) - bar.from)}${end})`]
    .filter(Boolean).join("\n");
}

function drawLog() {
  const items = log.slice().reverse().map((entry) => {
    const item = make("li");
    const time = make("time", "", clockText(entry.at));
    const what = make("span", "what");
    if (entry.name) what.append(make("bdi", "name", entry.name), " ");
    what.append(make("span", "", logText(entry)));
    item.append(time, what);
    return item;
  });
  byId("log").replaceChildren(...(items.length ? items : [make("li", "none", "None so far.")]));
}

function logText(entry) {
  if (entry.kind === "unavailable") return `the store does not answer: ${entry.error}`;
  if (entry.kind === "watching") return "the store answers again";
  if (entry.kind === "free") return "is free";
  if (entry.kind === "queue") {
    const parts = Object.entries(entry.waiting).map(([mode, tasks]) => `${tasks} ${mode}`);
    return parts.length ? `waiting: ${parts.join(", ")}` : "nobody waits";
  }
  const how = { granted: "granted to", held: "held by", ended: "grant of", lost: "lease of" }[entry.kind];
  // The store does not tell a release from a grant that a person has ended.
  const after = { ended: " ended", lost: " ran out" }[entry.kind] || "";
  const age = entry.kind === "ended" || entry.kind === "lost" ? ` after ${span(entry.age)}` : "";
  const why = entry.why ? `: ${entry.why}` : "";
  return `${entry.mode}, ${how} ${entry.who || "an unknown program"}${after}${age}${why}`;
}

// ------------------------------------------------------------------------- details

let detailsKey = "";

function drawDetails() {
  const panel = byId("details");
  const view = views.get(selected);
  if (!view) selected = null; // the resource left the page
  panel.hidden = selected === null;
  // On a small screen the details cover the page.
  const covered = selected !== null && getComputedStyle(panel).position === "fixed";
  for (const part of document.querySelectorAll("header, main, .log, footer")) part.inert = covered;
  if (selected === null) return;
  const key = JSON.stringify([view, detailWindow], (name, value) => (["ends", "text", "key"].includes(name) ? undefined : value));
  if (key !== detailsKey) {
    detailsKey = key;
    buildDetails(panel, view);
  }
  const at = seenNow();
  const state = isFree(view) ? `free for ${span(at - view.freed)}`
    : isHeld(view, at) ? "held" : view.holders.length ? "free: the lease has ended, there is nothing to do" : "free, waited for";
  const back = view.setBack ? `; the store's clock was set back by ${span(view.setBack)}` : "";
  put(panel.querySelector(".state"), state + (view.fence ? `, last fence ${view.fence}` : "") + back);
  for (const [index, holder] of view.holders.entries()) {
    const card = panel.querySelector(`[data-holder="${index}"]`);
    put(card.querySelector(".lease"), leaseLeft(holder, at));
    put(card.querySelector(".age"), `${span(at - holder.since)}, since ${clockText(holder.since)}`);
  }
  for (const [index, one] of view.queue.entries()) {
    put(panel.querySelector(`[data-queued="${index}"] .age`), span(at - one.since));
  }
  const { grants, waits } = lanes(view, histories.get(view.row) ?? [], at - detailWindow, at, 12);
  drawLine(panel.querySelector(".big"), view, detailWindow, Math.max(14 * (grants + waits * 0.5), 28), 12);
}

function buildDetails(panel, view) {
  const focus = document.activeElement?.dataset?.keep;
  const head = make("div", "details-head");
  const title = make("h2", "", view.name);
  title.dir = "auto";
  title.id = "details-name";
  const close = make("button", "quiet", "Close");
  close.type = "button";
  close.dataset.keep = "close";
  close.addEventListener("click", closeDetails);
  head.append(title, close);

  const windows = make("div", "windows");
  const choices = make("div");
  for (const seconds of [60, 300, 900]) {
    const button = make("button", "quiet", `${seconds / 60} min`);
    button.type = "button";
    button.dataset.keep = `window-${seconds}`;
    button.setAttribute("aria-pressed", String(seconds === detailWindow));
    button.addEventListener("click", () => { detailWindow = seconds; schedule(); });
    choices.append(button);
  }
  windows.append(make("h3", "", "Time line"), choices);
  const axis = make("div", "axis");
  axis.append(make("span", "", `${detailWindow / 60} min ago`), make("span", "", "now"));

  const parts = [head, make("p", "state"), windows, make("div", "big"), axis];
  if (view.holders.length) {
    parts.push(make("h3", "", view.limit === undefined ? "Held by" : `Held by ${view.holders.length} of ${view.limit}`));
    parts.push(...view.holders.slice(0, 200).map((holder, index) => holderCard(view, holder, index)));
  }
  if (view.queue.length) {
    parts.push(make("h3", "", "Waiting, first come first"));
    parts.push(...view.queue.slice(0, 200).map((one, index) => queueCard(one, index)));
  }
  panel.replaceChildren(...parts);
  if (focus) panel.querySelector(`[data-keep="${CSS.escape(focus)}"]`)?.focus();
}

function facts(pairs) {
  const list = make("dl", "facts");
  for (const [name, className, text] of pairs) {
    list.append(make("dt", "", name), make("dd", className, text));
  }
  return list;
}

function cardHead(mode, who) {
  const first = make("div", "first");
  const badge = make("span", "badge", mode);
  badge.dataset.mode = mode.split(" ").pop();
  first.append(badge, make("span", "who", who || "an unknown program"));
  return first;
}

function holderCard(view, holder, index) {
  const card = make("div", `card${holder.left ? " left" : ""}`);
  card.dataset.holder = index;
  card.append(cardHead(holder.mode, holder.who));
  if (holder.why) card.append(make("p", "why", holder.why));
  const pairs = [["held", "age", ""], ["lease", "lease", ""], ["holder", "mono", holder.holder], ["fence", "mono", holder.fence ?? "-"]];
  if (holder.task) pairs.push(["task", "", holder.task]);
  card.append(facts(pairs));
  if (mayBreak) {
    const button = make("button", "quiet", "End this grant…");
    button.type = "button";
    button.dataset.keep = `end-${holder.holder}`;
    button.addEventListener("click", () => openDialog(view, { ...holder }));
    card.append(button);
  }
  return card;
}

function queueCard(one, index) {
  const card = make("div", "card");
  card.dataset.queued = index;
  card.append(cardHead(one.tasks > 1 ? `${one.tasks} ${one.mode}` : one.mode, one.who));
  if (one.why) card.append(make("p", "why", one.why));
  card.append(facts([["waits", "age", ""]]));
  return card;
}

function openDetails(key) {
  selected = key;
  detailsKey = "";
  draw();
  if (getComputedStyle(byId("details")).position === "fixed") byId("details").querySelector("button").focus();
}

function closeDetails() {
  const key = selected;
  selected = null;
  drawDetails();
  drawn.get(key)?.focus({ preventScroll: true });
  schedule();
}

// --------------------------------------------------------------------- time lines

function keepEnded(row, ended, after) {
  const spans = [...histories.get(row) ?? [], ...ended].filter((one) => one.to > after);
  histories.set(row, spans.slice(-MAX_SPANS));
}

// -------------------------------------------------------------------- end a grant

let seen = null; // the row and the holder when the dialog was opened

function openDialog(view, holder) {
  seen = { row: view.row, holder: holder.holder, fence: holder.fence };
  const list = byId("dialog-facts");
  list.replaceChildren();
  for (const [name, text] of [["resource", view.name], ["held by", `${holder.who} (${holder.mode})`], ["reason", holder.why],
    ["lease", leaseLeft(holder, now())], ["holder", holder.holder], ["fence", holder.fence ?? "-"]]) {
    if (text) list.append(make("dt", "", name), make("dd", "", text));
  }
  put(byId("dialog-error"), "");
  byId("reason").value = "";
  byId("dialog-ok").disabled = false;
  byId("dialog").showModal();
  byId("reason").focus();
}

async function endGrant(event) {
  event.preventDefault();
  byId("dialog-ok").disabled = true;
  try {
    const response = await fetch(address("break"), {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Rwlock-Board": "1" },
      body: JSON.stringify({ ...seen, reason: byId("reason").value }),
    });
    if (!response.ok) throw new Error(await response.text());
    const { broken } = await response.json();
    if (broken) byId("dialog").close();
    else put(byId("dialog-error"), "Nothing was ended: the holder shown here does not hold the lock any more.");
  } catch (error) {
    put(byId("dialog-error"), `Not done: ${error.message}`);
  } finally {
    byId("dialog-ok").disabled = false;
  }
}

// ------------------------------------------------------------------------- events

function moveTo(index) {
  const view = sorted[Math.max(0, Math.min(index, sorted.length - 1))];
  if (!view) return;
  cursor = view.row;
  const height = rowHeight();
  const top = byId("rows").getBoundingClientRect().top + sorted.indexOf(view) * height;
  if (top < 40) scrollBy(0, top - 40);
  else if (top + height > innerHeight) scrollBy(0, top + height - innerHeight);
  drawRows();
  drawn.get(cursor).focus({ preventScroll: true });
}

byId("rows").addEventListener("keydown", (event) => {
  const index = sorted.findIndex((view) => view.row === cursor);
  const page = Math.max(1, Math.floor(innerHeight / rowHeight()) - 2);
  const moves = { ArrowDown: index + 1, ArrowUp: index - 1, PageDown: index + page, PageUp: index - page, Home: 0, End: sorted.length - 1 };
  if (event.key in moves) {
    event.preventDefault();
    moveTo(moves[event.key]);
  } else if ((event.key === "Enter" || event.key === " ") && cursor !== null) {
    event.preventDefault();
    openDetails(cursor);
  }
});
byId("rows").addEventListener("focusin", (event) => {
  const row = event.target.closest(".row");
  if (row) cursor = row.dataset.row;
});
byId("rows").addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  cursor = row.dataset.row;
  openDetails(cursor);
});
byId("counts").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  show = show === button.dataset.show ? "" : button.dataset.show;
  arrange();
  schedule();
});
for (const id of ["filter", "type", "order"]) {
  byId(id).addEventListener("input", () => { arrange(); schedule(); });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, select")) {
    event.preventDefault();
    byId("filter").focus();
  } else if (event.key === "Escape" && !byId("dialog").open && selected !== null) {
    closeDetails();
  }
});
byId("dialog-form").addEventListener("submit", endGrant);
byId("dialog-cancel").addEventListener("click", () => byId("dialog").close());
addEventListener("scroll", schedule, { passive: true });
addEventListener("resize", schedule);
setInterval(() => { if (!document.hidden) schedule(); }, 1000);

drawLog();
connect();
