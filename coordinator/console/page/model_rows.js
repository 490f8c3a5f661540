// The models, and what an operator does with each.
import { request } from "./api.js";
import { announce, byId, el, fill, keyed, setText } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { hasEnded, phaseName } from "./transition_phases.js";

const NAMES = { falling_asleep: "falls asleep", waking: "wakes up", asleep: "asleep" };
const KINDS = { awake: "good", asleep: "wait", failed: "bad" };

// What a model's state is called, and its colour.
export function stateOf(model) {
  if (!model) return { text: "loading", kind: "warn" };
  const depth = model.state === "asleep" && model.sleep_level > 0 ? `, level ${model.sleep_level}` : "";
  return { text: `${NAMES[model.state] ?? model.state}${depth}`, kind: KINDS[model.state] ?? "warn" };
}

// Which actions make sense in a state.
const ACTIONS = [
  { name: "Sleep", path: "/sleep?level=1", fits: (m) => ["awake", "paused"].includes(m.state) },
  { name: "Sleep deeply", path: "/sleep?level=2", fits: (m) => ["awake", "paused"].includes(m.state), title: "Level 2: weights are read again from their files" },
  { name: "Wake up", path: "/wake_up", fits: (m) => m.state === "asleep", primary: true },
  { name: "Pause", path: "/pause?clear_cache=false", fits: (m) => m.state === "awake" },
  { name: "Resume", path: "/resume", fits: (m) => m.paused || m.state === "paused" },
  { name: "Revive", path: "/revive", fits: (m) => m.state === "failed", primary: true },
];
const END_CALL = { name: "End this call", path: "/abort_call" };

const sum = (object) => Object.values(object ?? {}).reduce((all, one) => all + one, 0);

function phases(ranks) {
  const total = (rank) => rank.seconds.prepare + rank.seconds.commit;
  const slowest = [...(ranks ?? [])].sort((a, b) => total(b) - total(a))[0];
  if (!slowest) return "";
  const parts = Object.entries(slowest.seconds).filter(([, time]) => time > 0).map(([name, time]) => `${name} ${seconds(time)}`);
  return parts.length > 0 ? ` Slowest rank (${slowest.rank}): ${parts.join(", ")}.` : "";
}

function outcomeOf(action, model, answer) {
  const moved = answer.freed_bytes ? `, freed ${bytes(sum(answer.freed_bytes))}` : answer.mapped_bytes ? `, mapped ${bytes(sum(answer.mapped_bytes))}` : "";
  const time = answer.seconds === undefined ? " is done" : ` took ${seconds(answer.seconds)}`;
  return `${model}: ${action.name.toLowerCase()}${time}${moved}.${phases(answer.ranks)}`;
}

async function act(action, model, look) {
  const separator = action.path.includes("?") ? "&" : "?";
  const outcome = byId("outcome");
  outcome.dataset.state = "wait";
  outcome.textContent = `${model}: ${action.name.toLowerCase()} …`;
  setTimeout(look, 50);
  try {
    const response = await request(`${action.path}${separator}model=${encodeURIComponent(model)}`, { method: "POST" });
    outcome.dataset.state = "good";
    outcome.textContent = outcomeOf(action, model, await response.json());
  } catch (error) {
    outcome.dataset.state = "bad";
    outcome.textContent = `${model}: ${action.name.toLowerCase()} failed: ${error.message}`;
  }
  announce(outcome.textContent);
  look();
}

function callText(call) {
  if (!call) return "";
  const who = call.client ? ` by ${call.client}` : "";
  const waiting = call.num_waiting > 0 ? `, ${count(call.num_waiting)} more wait` : "";
  return `${call.name}${who}, for ${seconds(call.running_s)}${waiting}`;
}

// How far all ranks together are with a transition that is under way, and the phase of the rank that is least far.
function progressText(ranks) {
  const moving = ranks.filter((rank) => rank.transition && !hasEnded(rank.transition)).map((rank) => rank.transition);
  if (moving.length === 0) return "";
  const total = (name) => moving.reduce((all, one) => all + one[name], 0);
  const slowest = moving.reduce((least, one) => (one.bytes_done * least.bytes_total < least.bytes_done * one.bytes_total ? one : least));
  return `${slowest.wakes_up ? "wake-up" : "sleep"}: ${phaseName(slowest)}, ${percent(total("bytes_done"), total("bytes_total"))} of ${bytes(total("bytes_total"))}`;
}

function showActions(cell, model, choose, look) {
  const fitting = ACTIONS.filter((action) => !model.lifecycle_call && action.fits(model));
  if (model.lifecycle_call) fitting.push(END_CALL);
  const names = fitting.map((action) => action.name).join();
  if (cell.dataset.names === names) return;
  cell.dataset.names = names;
  fill(
    cell,
    fitting.map((action) =>
      el(
        "button",
        {
          type: "button",
          class: action.primary ? "primary" : "",
          title: action.title,
          "aria-label": `${action.name}: ${model.model}`,
          on: {
            click: () => {
              choose(model.model);
              act(action, model.model, look);
            },
          },
        },
        action.name,
      ),
    ),
  );
}

// `choose`: called with a model's name, which is shown from then on; `look`: asks for the status at once.
export function showModels(status, choose, look) {
  const progress = (model) => (model.model === status.detail?.model ? progressText(status.detail.ranks) : "");
  keyed(
    byId("model-rows"),
    status.models,
    (model) => model.model,
    (model) =>
      el(
        "tr",
        { class: "model-row" },
        el("th", { scope: "row" }, model.model),
        el("td", {}, el("span", { class: "badge" }), el("div", { class: "why" })),
        el("td", {}, el("div", { class: "actions" })),
        el("td", { class: "number" }),
        el("td", { class: "number" }),
        el("td", { class: "number" }),
      ),
    (row, model) => {
      const [, state, actions, running, waiting, memory] = row.children;
      const { text, kind } = stateOf(model);
      setText(state.firstChild, text);
      state.firstChild.dataset.state = kind;
      const now = [callText(model.lifecycle_call), progress(model)].filter(Boolean).join("; ");
      setText(state.lastChild, now || model.error || model.state_report?.why || "");
      setText(running, count(model.num_requests_running));
      setText(waiting, count(model.num_requests_waiting));
      const host = sum(model.host_bytes_by_tag);
      setText(memory, bytes(sum(model.resident_bytes_by_tag)) + (host > 0 ? ` (+ ${bytes(host)} in host memory)` : ""));
      showActions(actions.firstChild, model, choose, look);
    },
  );
}
