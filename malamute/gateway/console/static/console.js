// The pages work without this. It renews them, draws charts, follows streams, and adds keys.

const main = document.getElementById("main");
const status = document.getElementById("state");
// On a phone the pages are in one line, which is longer than the screen.
const bar = document.querySelector(".bar nav");
const current = bar.querySelector("[aria-current]");
if (current) bar.scrollLeft = current.offsetLeft - bar.offsetLeft - 40;
const say = (words) => { if (status.textContent !== words) status.textContent = words; };
let paused = false;

// On a phone the rows of a table are cards, in which the title of its column stands beside each value.
function entitle(root) {
  for (const table of root.querySelectorAll(".wide > table")) {
    const titles = [...table.tHead?.rows[0]?.cells ?? []].map((cell) => cell.textContent.trim());
    table.classList.toggle("cards", titles.length > 0);
    for (const row of table.tBodies[0]?.rows ?? []) {
      for (const cell of row.cells) if (titles[cell.cellIndex]) cell.dataset.title = titles[cell.cellIndex];
    }
  }
}
entitle(main);

// Pages are renewed by asking for them again: what is marked `data-live` is replaced, all else stays.
const isBusy = (old) => old.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button, summary")
  || (!getSelection().isCollapsed && old.contains(getSelection().anchorNode))
  || old.querySelector("details[open]");

async function renew() {
  const answer = await fetch(location.href, { headers: { accept: "text/html", "malamute-renews": "1" }, redirect: "manual" });
  if (answer.type === "opaqueredirect") return location.reload();
  if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
  if ("untilWell" in main.dataset) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  entitle(fresh);
  for (const old of main.querySelectorAll("[data-live]")) {
    const found = fresh.getElementById(old.id);
    if (!found || isBusy(old) || found.isEqualNode(old)) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceWith(document.adoptNode(found));
    if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
  main.dispatchEvent(new Event("renewed"));
}

let renewedAt = new Date();
function lose() {
  const lost = document.getElementById("lost");
  if (lost.hidden) lost.textContent = `Reconnecting: the data is of ${renewedAt.toLocaleTimeString()}.`;
  lost.hidden = false;
}

const seconds = Number(main.dataset.refresh || 0);
if (seconds) {
  const loop = async () => {
    if (!document.hidden && !paused) {
      try { await renew(); renewedAt = new Date(); } catch { lose(); }
    }
    setTimeout(loop, seconds * 1000);
  };
  setTimeout(loop, Math.min(1, seconds) * 1000);
}

// Charts
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => value >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : value >= 1e3 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(value < 10 ? 2 : 0)}`;
const charts = new Map();

// The value under the pointer, or else the newest one.
function reading(place, chart) {
  const values = chart.data[1];
  const at = chart.cursor.idx ?? values.length - 1;
  const value = values[at];
  const time = chart.cursor.idx == null ? "" : ` at ${new Date(chart.data[0][at] * 1000).toLocaleTimeString()}`;
  place.parentElement.querySelector("output").textContent = value == null ? "" : `${short(value)} ${place.dataset.unit}${time}`;
}

function draw() {
  const held = document.getElementById("series");
  if (!held || typeof uPlot === "undefined") return;
  const series = JSON.parse(held.dataset.series);
  for (const place of main.querySelectorAll(".chart")) {
    const now = Date.now() / 1000;
    const column = Number(place.dataset.column);
    const data = series[0]?.length > 1 && series[column] ? [series[0], series[column]] : [[now - 60, now], [null, null]];
    const known = charts.get(place);
    if (known) { known.setData(data); reading(place, known); continue; }
    const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const drawn = new uPlot({
      width: place.clientWidth, height: place.clientHeight, legend: { show: false },
      cursor: { points: { size: 6 }, drag: { x: false }, sync: { key: "charts" } },
      hooks: { setCursor: [(u) => { reading(place, u); }] },
      scales: { y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [{ ...axis, values: "{HH}:{mm}:{ss}", space: 70, size: 26 }, { ...axis, size: 46, values: (u, ticks) => ticks.map(short) }],
      series: [{}, { stroke: () => colour("--line-1"), width: 1.5, fill: () => `${colour("--line-1")}22`, points: { show: false } }],
    }, data, place);
    charts.set(place, drawn);
    reading(place, drawn);
  }
}
const resize = () => charts.forEach((chart, place) => chart.setSize({ width: place.clientWidth, height: place.clientHeight }));
addEventListener("load", draw);
main.addEventListener("renewed", draw);
addEventListener("resize", resize);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));

// The live tail. What a message holds is set as text, never as markup.
const make = (tag, name, words) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (words !== undefined) element.textContent = words;
  return element;
};
// JSON by lines, without another change: numbers and keys are those of the body.
function pretty(text) {
  try { if (!/^\s*[[{]/.test(text) || JSON.parse(text) === null) return text; } catch { return text; }
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 20))}`;
  return text.replace(/("(?:[^"\\]|\\.)*")|([{[])\s*([}\]])|([{[])\s*|\s*([}\]])|(,)\s*|(:)\s*|\s+/g, (found, string, open, shut, opens, shuts, comma, colon) => {
    if (string) return string;
    if (open) return open + shut;
    if (opens) { depth++; return opens + line(); }
    if (shuts) { depth--; return line() + shuts; }
    return comma ? comma + line() : colon ? ": " : "";
  });
}
function hex(bytes) {
  const rows = [];
  for (let at = 0; at < Math.min(bytes.length, 4096); at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const codes = row.map((one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    rows.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(48)} ${row.map((one) => one >= " " && one <= "~" ? one : ".").join("")}`);
  }
  return rows.join("\n");
}
const headerTable = (headers) => {
  const table = make("table", "headers");
  for (const [name, value] of Object.entries(headers)) table.insertRow().append(make("th", "", name), make("td", "text mono", typeof value === "string" ? value : JSON.stringify(value)));
  return table;
};

function shown(message) {
  const isText = message.body !== undefined && !/[\x00-\x08\x0b\x0c\x0e-\x1f]/.test(message.body);
  const bytes = isText ? "" : message.body === undefined ? atob(message.body_base64 ?? "") : String.fromCharCode(...new TextEncoder().encode(message.body.slice(0, 4096)));
  const body = isText ? message.body : `${bytes.length} bytes that are no text`;
  const details = make("details", "message");
  const line = make("summary");
  line.append(make("span", "n", message.sequence), make("span", "quiet", message.time.slice(11, 23)), make("span", "subject", message.subject), make("span", "body", body.slice(0, 300)));
  details.append(line);
  details.addEventListener("toggle", () => {
    const inside = make("div", "detail");
    if (message.headers) inside.append(headerTable(message.headers));
    const copied = make("div", "copied");
    const button = make("button", "copy small", "Copy");
    button.type = "button";
    const pre = make("pre", "", isText ? pretty(body) : hex(bytes));
    copied.append(pre, button);
    if (isText) {
      const raw = make("button", "small", "Hex");
      raw.type = "button";
      raw.addEventListener("click", () => {
        const isHex = raw.textContent === "Hex";
        raw.textContent = isHex ? "Text" : "Hex";
        pre.textContent = isHex ? hex(String.fromCharCode(...new TextEncoder().encode(body.slice(0, 4096)))) : pretty(body);
      });
      copied.append(raw);
    }
    inside.append(copied);
    details.append(inside);
  }, { once: true });
  details.words = `${message.subject}\n${JSON.stringify(message.headers ?? {})}\n${body}`.toLowerCase();
  return details;
}

// A button with two states, pressed or not.
function press(id, words, pressed, act) {
  const button = document.getElementById(id);
  const is = () => button?.getAttribute("aria-pressed") === "true";
  button?.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!is()));
    button.textContent = is() ? pressed : words;
    act(is());
  });
  return is;
}

const tail = document.getElementById("tail");
if (tail) {
  const keep = 500;
  const waiting = [];
  const put = (element) => { waiting.push(element); if (waiting.length > keep) waiting.shift(); };
  const filter = document.getElementById("filter");
  const sift = (one) => { one.hidden = one.words !== undefined && !one.words.includes(filter.value.toLowerCase()); };
  filter.addEventListener("input", () => [...tail.children].forEach(sift));
  const isExpanded = press("expand", "Expand", "Collapse", (is) => tail.querySelectorAll("details").forEach((one) => { one.open = is; }));
  document.getElementById("clear").addEventListener("click", () => { tail.replaceChildren(); waiting.length = 0; });
  const flush = () => {
    if (paused) say(waiting.length ? `paused: ${waiting.length}${waiting.length === keep ? " or more" : ""} wait` : "paused");
    else if (waiting.length) {
      const fresh = waiting.splice(0).reverse();
      for (const one of fresh) { sift(one); one.open = isExpanded(); }
      tail.prepend(...fresh);
      while (tail.childElementCount > keep) tail.lastElementChild.remove();
    }
    requestAnimationFrame(flush);
  };
  requestAnimationFrame(flush);
  const events = new EventSource(tail.dataset.events);
  events.onopen = () => say("following");
  events.onerror = () => say(events.readyState === EventSource.CLOSED ? "the stream has ended: load the page again" : "connection lost; reconnecting");
  events.onmessage = (event) => put(shown(JSON.parse(event.data)));
  events.addEventListener("skipped", (event) => put(make("p", "skipped", `${Number(event.data).toLocaleString("en")} messages were left out: they come faster than anybody reads`)));
  events.addEventListener("gap", (event) => {
    const gap = JSON.parse(event.data);
    put(make("p", "skipped", `unavailable: ${gap.first} to ${gap.last}, ${gap.reason}`));
  });
  events.addEventListener("problem", (event) => { put(make("p", "note bad", JSON.parse(event.data).detail)); events.close(); say("the stream has ended"); });
}

// Copies
addEventListener("click", async (event) => {
  if (!event.target.matches(".copy")) return;
  const text = event.target.parentElement.querySelector("pre");
  try {
    await navigator.clipboard.writeText(text.textContent);
    event.target.textContent = "Copied";
  } catch {
    // Without TLS a browser lets no page write there: the text is marked instead.
    getSelection().selectAllChildren(text);
  }
});

press("pause", "Pause", "Continue", (is) => { paused = is; say(is ? "paused" : tail ? "following" : ""); });

// Keys
let leading = false;
const rows = () => [...main.querySelectorAll("tbody tr td:first-child a, .message summary")];
const step = (by) => {
  const all = rows();
  const at = all.indexOf(document.activeElement);
  all[Math.min(Math.max(at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by, 0), all.length - 1)]?.focus();
};
const keys = {
  "/": () => main.querySelector("input[type=search]")?.focus(),
  "?": () => document.getElementById("keys").showModal(),
  j: () => step(1),
  k: () => step(-1),
  p: () => document.getElementById("pause")?.click(),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (leading) {
    leading = false;
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "g") { leading = true; return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
// A whole list of boxes at once.
main.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) for (const box of main.querySelectorAll(`input[name="${CSS.escape(event.target.dataset.all)}"]`)) box.checked = event.target.checked;
});
