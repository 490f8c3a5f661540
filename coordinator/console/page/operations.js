// Operators' page: asks for the status again and again, while the page can be seen, and shows it.
import { json, keyButton } from "./api.js";
import { byId, el, fill, setText, themeButton } from "./dom.js";
import { showEvents } from "./event_list.js";
import { seconds } from "./format.js";
import { showKvMaps } from "./kv_map.js";
import { showModels, stateOf } from "./model_rows.js";
import { showRanks } from "./rank_rows.js";
import { openRequests, showRequests } from "./request_rows.js";
import { showTiles } from "./tiles.js";
import { openTrace } from "./trace.js";

const INTERVAL_MS = 1000;
const IN_TRANSITION_MS = 300;  // while a sleep, a wake-up or a recovery is under way

let chosen = "";  // the model that is shown; empty: the first
let last = null;
let generation = 0;  // a later look makes the answer of an earlier one stale

const select = byId("model");

function showChoice(status) {
  const names = status.models.map((model) => model.model);
  if (JSON.stringify(names) !== select.dataset.names) {
    select.dataset.names = JSON.stringify(names);
    fill(select, names.map((name) => el("option", { value: name }, name)));
  }
  if (status.detail) select.value = status.detail.model;
}

function showHead(status) {
  const model = status.models.find((one) => one.model === status.detail?.model);
  const state = stateOf(model);
  byId("state").dataset.state = state.kind;
  setText(byId("state"), state.text);
  setText(byId("server"), `Somnus ${status.version}, up ${seconds(status.uptime_s)}`);
  const report = model?.state_report ?? status.state_report;
  byId("report").hidden = !report;
  if (report) setText(byId("report"), report.line);
}

function show(status) {
  showChoice(status);
  showHead(status);
  showModels(status, choose, look);
  const { detail } = status;
  if (!detail) return;
  const model = status.models.find((one) => one.model === detail.model);
  showTiles(status.uptime_s, model);
  showRanks(detail);
  showKvMaps(model, detail);
  showRequests(model, detail);
  showEvents(status, detail);
}

const changes = (status) =>
  status?.models.some((model) => model.lifecycle_call || ["falling_asleep", "waking", "recovering"].includes(model.state));

function connection(text) {
  byId("connection").hidden = !text;
  setText(byId("connection"), text);
}

// Looks now.
async function look() {
  const mine = ++generation;
  try {
    const query = chosen ? `?model=${encodeURIComponent(chosen)}` : "";
    const status = await json(`/status${query}`);
    if (mine !== generation) return;
    last = status;
    show(status);
    connection("");
  } catch (error) {
    if (mine !== generation) return;
    if (error.status === 404 && chosen) chosen = "";  // the model is not served any more
    connection(`The server does not answer: ${error.message}`);
    byId("state").dataset.state = "bad";
    setText(byId("state"), "no answer");
  }
}

function choose(name) {
  if (name === (chosen || last?.detail?.model)) return;
  chosen = name;
  look();
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, changes(last) ? IN_TRANSITION_MS : INTERVAL_MS);
}

themeButton();
keyButton(look);
select.addEventListener("change", () => choose(select.value));
document.addEventListener("visibilitychange", () => !document.hidden && look());
openRequests();
openTrace(() => last?.detail?.model ?? "");
watch();
