// What has happened: the server's own list of sleeps, wake-ups and recoveries, and the changes of states that this page
// has seen, with their reasons.
import { byId, el, keyed, setText } from "./dom.js";
import { clock, seconds } from "./format.js";
import { stateOf } from "./model_rows.js";

const MOST = 200;
const NAMES = {
  sleep: "Fell asleep",
  wake_up: "Woke up",
  recovery: "The group of workers was lost, and is whole again",
  reload_weights: "Weights were reloaded",
  update_weights: "Weights were updated",
  self_check: "Self-check",
};
const KINDS = { recovery: "warn" };

const seen = new Map();  // by model: {list, state}
let serial = 0;

function note(log, time, text, kind, key) {
  if (log.list.some((event) => event.key === key)) return;
  log.list.push({ key, time, text, kind });
  log.list.sort((a, b) => b.time - a.time);
  log.list.length = Math.min(log.list.length, MOST);
}

function noteState(log, model) {
  const { text, kind } = stateOf(model);
  if (log.state !== null && log.state !== text) {
    const why = model.state_report?.why ? `: ${model.state_report.why}` : "";
    note(log, Date.now(), `Now ${text}${why}`, kind, `state ${++serial}`);
  }
  log.state = text;
}

export function showEvents(status, detail) {
  for (const model of status.models) {
    if (!seen.has(model.model)) seen.set(model.model, { list: [], state: null });
    noteState(seen.get(model.model), model);
  }
  const log = seen.get(detail.model);
  for (const event of detail.events) {
    const text = `${NAMES[event.name] ?? event.name}, in ${seconds(event.seconds)}`;
    note(log, Date.now() - 1000 * event.ago_s, text, KINDS[event.name] ?? "", `${event.name} ${event.seconds}`);
  }
  byId("no-events").hidden = log.list.length > 0;
  byId("events").hidden = log.list.length === 0;
  keyed(
    byId("events"),
    log.list,
    (event) => `${detail.model} ${event.key}`,
    (event) => el("li", {}, el("time", {}, clock(new Date(event.time))), el("span", { "data-state": event.kind || null })),
    (row, event) => setText(row.lastChild, event.text),
  );
}
