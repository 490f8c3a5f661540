// The numbers of a model at a glance, each with its last two minutes as a line.
import { byId, el, setText } from "./dom.js";
import { count, percent, rate, seconds } from "./format.js";

const SAMPLES = 120;
const SVG = "http://www.w3.org/2000/svg";

const TILES = [
  { id: "running", name: "Running", value: (s) => s.running, text: count },
  { id: "waiting", name: "Waiting", value: (s) => s.waiting, text: count },
  { id: "throughput", name: "Tokens/s", value: (s) => s.throughput, text: rate },
  { id: "ttft", name: "TTFT", value: (s) => s.ttft, text: seconds, help: "time to the first token" },
  { id: "tpot", name: "TPOT", value: (s) => s.tpot, text: seconds, help: "time per further token" },
  { id: "kv", name: "KV cache", value: (s) => s.kv, text: (v) => `${(100 * v).toFixed(v < 0.1 ? 1 : 0)}\u00a0%` },
];

const histories = new Map();  // by model: {samples, before}

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function makeTile(tile) {
  const line = svg("path", {});
  const area = svg("path", { class: "area" });
  const spark = svg("svg", { class: "spark", viewBox: `0 0 ${SAMPLES - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true" });
  spark.append(area, line);
  const value = el("p", { class: "value", id: `tile-${tile.id}` }, "–");
  const note = el("p", { class: "hint" }, tile.help ?? " ");
  const node = el("div", { class: "card tile", role: "group", "aria-label": tile.name }, el("p", { class: "name" }, tile.name), value, note, spark);
  return { node, value, note, line, area };
}

let parts = null;

function draw(part, values) {
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, 1e-9);
  const first = SAMPLES - values.length;
  let path = "";
  let open = false;
  let begin = 0;
  let area = "";
  values.forEach((value, i) => {
    const x = first + i;
    if (value === null) {
      open = false;
      return;
    }
    const y = (28 - (26 * value) / most).toFixed(1);
    if (!open) begin = x;
    path += `${open ? "L" : "M"}${x} ${y}`;
    area += open ? `L${x} ${y}` : `M${x} 30L${x} ${y}`;
    open = true;
    if (i === values.length - 1 || values[i + 1] === null) area += `L${x} 30L${begin} 30Z`;
  });
  part.line.setAttribute("d", path);
  part.area.setAttribute("d", area);
}

const ratio = (now, before, sum, number) => {
  const many = now[number] - before[number];
  return many > 0 ? (now[sum] - before[sum]) / many : null;
};

function sampleOf(time, model, before) {
  const span = before ? time - before.time : 0;
  const now = model.latency;
  return {
    running: model.num_requests_running,
    waiting: model.num_requests_waiting,
    throughput: span > 0 ? Math.max(0, (model.generation_tokens - before.tokens) / span) : null,
    ttft: span > 0 ? ratio(now, before.latency, "first_token_s", "num_first_tokens") : null,
    tpot: span > 0 ? ratio(now, before.latency, "further_token_s", "num_further_tokens") : null,
    kv: model.total_blocks > 0 ? (model.total_blocks - model.free_blocks) / model.total_blocks : null,
  };
}

// Adds a sample, at most one for each half second, so that a transition, when looks are close, stretches no line.
function remember(time, model) {
  const history = histories.get(model.model) ?? { samples: [], before: null };
  histories.set(model.model, history);
  if (history.before && time - history.before.time < 0.5) return history.samples;
  history.samples.push(sampleOf(time, model, history.before));
  if (history.samples.length > SAMPLES) history.samples.shift();
  history.before = { time, tokens: model.generation_tokens, latency: model.latency };
  return history.samples;
}

const lastKnown = (values) => values.findLast((value) => value !== null) ?? null;

export function showTiles(time, model) {
  if (!parts) {
    parts = TILES.map(makeTile);
    byId("tiles").replaceWith(...parts.map((part) => part.node));
  }
  const samples = remember(time, model);
  TILES.forEach((tile, i) => {
    const values = samples.map(tile.value);
    const value = lastKnown(values);
    setText(parts[i].value, value === null ? "–" : tile.text(value));
    draw(parts[i], values);
  });
  const used = model.total_blocks - model.free_blocks;
  setText(parts[5].note, `${count(used)} of ${count(model.total_blocks)} blocks`);
  setText(parts[1].note, model.oldest_wait_s > 0 ? `the oldest for ${seconds(model.oldest_wait_s)}` : " ");
  setText(parts[2].note, `${percent(model.prefix_cache_hits, model.prefix_cache_queries)} of prompts cached`);
  setText(parts[0].note, `${count(model.num_preemptions)} preemptions`);
}
