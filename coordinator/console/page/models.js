// The models of this server: what the chat may choose from, and whether each serves now. The list is read when the page
// is opened or seen again; from then on the chosen model alone is asked for its health.
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

const stateText = (model) => (model.serves ? "ready" : (model.state ?? "not ready"));

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
  badge.dataset.state = model ? (model.serves ? "good" : "warn") : "bad";
  setText(badge, model ? stateText(model) : "no answer");
  badge.title = model?.reason ?? "";
  const note = byId("state-note");
  note.hidden = !model || model.serves;
  if (model) setText(note, model.reason);
}

function showTable() {
  keyed(
    byId("model-rows"),
    models,
    (model) => model.id,
    (model) => el("tr", {}, el("th", { scope: "row" }, model.id), el("td", { class: "number" }), el("td"), el("td")),
    (row, model) => {
      const [, length, state, reason] = row.children;
      setText(length, count(model.length));
      setText(state, stateText(model));
      state.dataset.state = model.serves ? "good" : "warn";
      setText(reason, model.parent ? `adapter of ${model.parent}` : model.reason);
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
    models = [];
  }
  show();
  const note = byId("connection");
  note.hidden = !error;
  setText(note, error ? `The server does not say which models it has: ${error}` : "");
}

async function look() {
  const model = models.find((one) => one.id === byId("model").value);
  if (!model) return refresh();
  Object.assign(model, await stateOf(model));
  show();
}

export function watchModels() {
  byId("model").addEventListener("change", look);
  document.addEventListener("visibilitychange", () => !document.hidden && refresh());
  const watch = async () => {
    if (!document.hidden) await look();
    setTimeout(watch, INTERVAL_MS);
  };
  setTimeout(watch, INTERVAL_MS);
  return refresh();
}
