// The models of this server: what the chat may choose from, and whether each serves now. The list is read when the page
// is opened or seen again, and again and again while it is shown. While the chat is shown, the chosen model alone is asked
// for its health.
import { json, request } from "./api.js";
import { byId, el, fill, keyed, setText } from "./dom.js";
import { count } from "./format.js";

const MOST = 64;  // models that are asked for their state
const INTERVAL_MS = 5000;

let models = [];  // {id, parent, length, state, serves, reason}

async function stateOf(model) {
  try {
    await request(`/health?model=${encodeURIComponent(model.parent ?? model.id)}`, { asks: false });
    return { serves: true, reason: "" };
  } catch (error) {
    return { serves: false, reason: error.message };
  }
}

// A model of several that does not compute now, and will when a request names it.
const wakesBy = (model) => model.serves && (model.state ?? "awake") !== "awake";
const stateText = (model) => (model.serves && !wakesBy(model) ? "ready" : (model.state?.replaceAll("_", " ") ?? "not ready"));
const stateKind = (model) => (wakesBy(model) ? "wait" : model.serves ? "good" : "warn");
const why = (model) => model.reason || (wakesBy(model) ? "A message wakes this model." : "");

async function load() {
  const { data } = await json("/v1/models");
  models = await Promise.all(
    data.slice(0, MOST).map(async (card) => {
      const model = { id: card.id, parent: card.parent, length: card.max_model_len, state: card.state };
      return { ...model, ...(await stateOf(model)) };
    }),
  );
}

function showChoice() {
  const select = byId("model");
  const names = models.map((model) => model.id);
  if (JSON.stringify(names) === select.dataset.names) return;
  const before = select.value;
  select.dataset.names = JSON.stringify(names);
  fill(select, names.map((name) => el("option", { value: name }, name)));
  if (names.includes(before)) select.value = before;
}

function showState() {
  const model = models.find((one) => one.id === byId("model").value);
  const badge = byId("state");
  badge.dataset.state = model ? stateKind(model) : "bad";
  setText(badge, model ? stateText(model) : "no answer");
  badge.title = model ? why(model) : "";
  const note = byId("state-note");
  note.hidden = !model || !why(model);
  note.dataset.state = badge.dataset.state;
  if (model) setText(note, why(model));
}

function showTable() {
  keyed(
    byId("model-rows"),
    models,
    (model) => model.id,
    (model) => el("tr", {}, el("th", { scope: "row" }, model.id), el("td", { class: "number context" }), el("td"), el("td")),
    (row, model) => {
      const [, length, state, reason] = row.children;
      setText(length, count(model.length));
      setText(state, stateText(model));
      state.dataset.state = stateKind(model);
      setText(reason, model.parent ? `adapter of ${model.parent}` : why(model));
    },
  );
}

function show() {
  showChoice();
  showState();
  showTable();
}

export async function refresh() {
  let error = "";
  try {
    await load();
  } catch (problem) {
    error = problem.message;
    models = models.map((model) => ({ ...model, serves: false, state: undefined, reason: error }));
  }
  show();
  const note = byId("connection");
  note.hidden = !error;
  setText(note, error ? `The server does not say which models it has: ${error}` : "");
}

// Cards alone say which of several models sleep, since a model that a request would wake is healthy.
async function readStates() {
  const { data } = await json("/v1/models");
  const states = new Map(data.map((card) => [card.id, card.state]));
  for (const model of models) model.state = states.get(model.id) ?? model.state;
}

async function look() {
  const model = models.find((one) => one.id === byId("model").value);
  if (!model) return refresh();
  try {
    if (model.state !== undefined) await readStates();
  } catch {
    return refresh();
  }
  Object.assign(model, await stateOf(model));
  show();
}

export function watchModels() {
  byId("model").addEventListener("change", look);
  document.addEventListener("visibilitychange", () => !document.hidden && refresh());
  const watch = async () => {
    if (!document.hidden) await (byId("view-models").hidden ? look() : refresh());
    setTimeout(watch, INTERVAL_MS);
  };
  setTimeout(watch, INTERVAL_MS);
  return refresh();
}
