// The last steps of a model as a timeline: a row for each replica, and one for what else took the engine's time.
import { json } from "./api.js";
import { colour, prepare } from "./canvas.js";
import { byId, setText } from "./dom.js";
import { count, percent, seconds } from "./format.js";

const ROW = 40;
const BAR = 20;  // below the name of the row
const TOP = 20;  // the axis
const COLOURS = { decode: "decode", prefill: "prefill", mixed: "mixed", free: "free" };

const canvas = byId("trace");
let rows = [];  // {name, events: [{name, begin, end, args}]}, in seconds since the first event
let extent = 1;
let view = { begin: 0, end: 1 };
let chosen = null;

function parse(trace) {
  const names = new Map();
  const byRow = new Map();
  let first = Infinity;
  for (const event of trace.traceEvents) {
    if (event.ph === "M" && event.name === "thread_name") names.set(event.tid, event.args.name);
    if (event.ph === "X") first = Math.min(first, event.ts);
  }
  for (const event of trace.traceEvents) {
    if (event.ph !== "X") continue;
    if (!byRow.has(event.tid)) byRow.set(event.tid, []);
    const begin = (event.ts - first) / 1e6;
    byRow.get(event.tid).push({ name: event.name, begin, end: begin + event.dur / 1e6, args: event.args });
  }
  rows = [...byRow.keys()].sort((a, b) => a - b).map((id) => ({
    name: names.get(id) ?? `row ${id}`,
    events: byRow.get(id).sort((a, b) => a.begin - b.begin),
  }));
  extent = rows.flatMap((row) => row.events).reduce((most, event) => Math.max(most, event.end), 1e-6);
  view = { begin: 0, end: extent };
  chosen = null;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function summary() {
  const steps = rows.flatMap((row) => row.events).filter((event) => event.args);
  if (steps.length === 0) return "No steps in this time.";
  const kinds = ["decode", "prefill", "mixed"].map((kind) => ({ kind, list: steps.filter((step) => step.name === kind) }));
  const parts = kinds.filter(({ list }) => list.length > 0).map(({ kind, list }) => `${count(list.length)} ${kind}, median ${seconds(median(list.map((step) => step.end - step.begin)))}`);
  const busy = steps.reduce((total, step) => total + step.end - step.begin, 0);
  return `${count(steps.length)} steps: ${parts.join("; ")}. Steps took ${percent(busy, extent * Math.max(1, rows.filter((row) => row.events[0]?.args).length))} of the time.`;
}

const x = (time, width) => ((time - view.begin) / (view.end - view.begin)) * width;

function drawAxis(context, width, height) {
  const span = view.end - view.begin;
  const raw = (span * 90) / width;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  context.fillStyle = colour("muted");
  context.strokeStyle = colour("line");
  context.font = "11px system-ui, sans-serif";
  for (let time = Math.ceil(view.begin / step) * step; time < view.end; time += step) {
    const at = Math.round(x(time, width)) + 0.5;
    context.beginPath();
    context.moveTo(at, 0);
    context.lineTo(at, height);
    context.stroke();
    context.fillText(seconds(Math.abs(time) < step / 2 ? 0 : time), at + 3, 12);
  }
}

function drawRow(context, row, top, width) {
  for (const event of row.events) {
    if (event.end < view.begin || event.begin > view.end) continue;
    const left = x(event.begin, width);
    context.fillStyle = colour(COLOURS[event.name] ?? "other");
    context.fillRect(left, top + ROW - BAR - 4, Math.max(1, x(event.end, width) - left - 0.5), BAR);
    if (event !== chosen) continue;
    context.strokeStyle = colour("text");
    context.lineWidth = 2;
    context.strokeRect(left, top + ROW - BAR - 5, Math.max(3, x(event.end, width) - left), BAR + 2);
    context.lineWidth = 1;
  }
  context.fillStyle = colour("muted");
  context.fillText(row.name, 4, top + 12);
}

function draw() {
  for (const name of ["in", "out", "left", "right", "all"]) byId(`trace-${name}`).disabled = rows.length === 0;
  byId("trace-body").hidden = rows.length === 0;
  const width = canvas.clientWidth;
  if (width === 0) return;
  const height = TOP + rows.length * ROW + 4;
  canvas.style.height = `${height}px`;
  const context = prepare(canvas, width, height);
  context.clearRect(0, 0, width, height);
  drawAxis(context, width, height);
  rows.forEach((row, i) => drawRow(context, row, TOP + i * ROW, width));
  const shown = `from ${seconds(view.begin)} to ${seconds(view.end)} of ${seconds(extent)}`;
  canvas.setAttribute("aria-label", `Timeline of steps, ${shown}`);
}

let due = 0;
const redraw = () => {
  due ||= requestAnimationFrame(() => {
    due = 0;
    draw();
  });
};

// Shows `span` seconds, with the moment `anchor` where it is.
function zoom(factor, anchor = (view.begin + view.end) / 2) {
  const span = Math.min(extent, Math.max(1e-5, (view.end - view.begin) * factor));
  const part = (anchor - view.begin) / (view.end - view.begin);
  const begin = Math.min(Math.max(0, anchor - part * span), extent - span);
  view = { begin, end: begin + span };
  redraw();
}

function move(by) {
  const span = view.end - view.begin;
  const begin = Math.min(Math.max(0, view.begin + by), extent - span);
  view = { begin, end: begin + span };
  redraw();
}

function all() {
  view = { begin: 0, end: extent };
  redraw();
}

function describe(event) {
  const facts = Object.entries(event.args ?? {})
    .filter(([, value]) => typeof value === "number" && value !== 0)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${Number.isInteger(value) ? count(value) : value.toPrecision(3)}`);
  return `${event.name}, ${seconds(event.end - event.begin)}, at ${seconds(event.begin)}${facts.length > 0 ? `: ${facts.join(", ")}` : ""}`;
}

function choose(event) {
  chosen = event;
  setText(byId("trace-detail"), event ? describe(event) : "");
  redraw();
}

function timeAt(event) {
  const box = canvas.getBoundingClientRect();
  return view.begin + ((event.clientX - box.left) / box.width) * (view.end - view.begin);
}

function eventAt(pointer) {
  const box = canvas.getBoundingClientRect();
  const row = rows[Math.floor((pointer.clientY - box.top - TOP) / ROW)];
  const time = timeAt(pointer);
  const slack = (2 * (view.end - view.begin)) / box.width;
  return row?.events.findLast((event) => event.begin - slack <= time && time <= event.end + slack) ?? null;
}

// Goes to the next or the last step of the row of the chosen one.
function step(by) {
  const row = rows.find((one) => one.events.includes(chosen)) ?? rows[rows.length - 1];
  if (!row) return;
  const place = chosen ? row.events.indexOf(chosen) + by : row.events.findIndex((event) => event.end >= view.begin);
  const event = row.events[Math.max(0, Math.min(row.events.length - 1, place))];
  if (event.begin < view.begin || event.end > view.end) move(event.begin - (view.begin + view.end) / 2);
  choose(event);
}

function onKey(event) {
  const quarter = (view.end - view.begin) / 4;
  const keys = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    ArrowLeft: () => (event.shiftKey ? step(-1) : move(-quarter)),
    ArrowRight: () => (event.shiftKey ? step(1) : move(quarter)),
    Home: all,
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

function openPointer() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return event.pointerType === "mouse" && choose(eventAt(event) ?? chosen);
    const by = event.clientX - drag.x;
    if (Math.abs(by) < 3 && !drag.moved) return;
    move((-by / canvas.clientWidth) * (view.end - view.begin));
    drag = { x: event.clientX, moved: true };
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) choose(eventAt(event));
    drag = null;
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (document.activeElement !== canvas) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    },
    { passive: false },
  );
}

async function load(model) {
  const query = `seconds=${byId("trace-seconds").value}&model=${encodeURIComponent(model)}`;
  try {
    parse(await json(`/trace?${query}`));
    setText(byId("trace-summary"), summary());
  } catch (error) {
    setText(byId("trace-summary"), `The trace could not be read: ${error.message}`);
  }
  choose(null);
}

// `modelOf`: returns the name of the model that is shown.
export function openTrace(modelOf) {
  setText(byId("trace-summary"), "Nothing was read yet.");
  byId("trace-load").addEventListener("click", () => load(modelOf()));
  byId("trace-in").addEventListener("click", () => zoom(0.5));
  byId("trace-out").addEventListener("click", () => zoom(2));
  byId("trace-left").addEventListener("click", () => move((view.begin - view.end) / 4));
  byId("trace-right").addEventListener("click", () => move((view.end - view.begin) / 4));
  byId("trace-all").addEventListener("click", all);
  canvas.addEventListener("keydown", onKey);
  openPointer();
  window.addEventListener("themechange", redraw);
  new ResizeObserver(redraw).observe(canvas);
  redraw();
}
