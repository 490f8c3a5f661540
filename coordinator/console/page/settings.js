// The settings of a request. An empty field is left out of requests, so that the server's default holds. The tab's
// sessionStorage keeps them.
import { byId } from "./dom.js";

const STORE = "somnus.settings";
const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "max_tokens",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
];
const TEXTS = ["system", "stop", "tools", "more"];
const field = (name) => byId(`set-${name}`);

function load() {
  let saved = {};
  try {
    saved = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
  } catch {
    saved = {};
  }
  for (const name of [...NUMBERS, ...TEXTS]) field(name).value = saved[name] ?? "";
  field("logprobs").checked = Boolean(saved.logprobs);
}

function save() {
  const values = { logprobs: field("logprobs").checked };
  for (const name of [...NUMBERS, ...TEXTS]) values[name] = field(name).value;
  try {
    sessionStorage.setItem(STORE, JSON.stringify(values));
  } catch {
    // The fields themselves keep the values as long as the page lasts.
  }
}

function parsed(name, isRight, shape) {
  const node = field(name);
  const text = node.value.trim();
  node.setCustomValidity("");
  node.removeAttribute("aria-invalid");
  if (!text) return undefined;
  try {
    const value = JSON.parse(text);
    if (isRight(value)) return value;
  } catch {
    // The error below says what is expected.
  }
  node.setAttribute("aria-invalid", "true");
  throw new Error(`${node.dataset.name} must be ${shape}.`);
}

export function openSettings() {
  load();
  byId("settings").addEventListener("input", save);
  byId("reset-settings").addEventListener("click", () => {
    try {
      sessionStorage.removeItem(STORE);
    } catch {
      // There was nothing to forget.
    }
    load();
  });
}

export const systemPrompt = () => field("system").value.trim();

// The fields of a request; throws an Error that names a setting that is wrong.
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) {
    const node = field(name);
    if (!node.validity.valid) throw new Error(`${node.labels[0].textContent.trim()}: ${node.validationMessage}`);
    if (node.value !== "") fields[name] = Number(node.value);
  }
  const stops = field("stop").value.split("\n").filter((line) => line !== "");
  if (stops.length > 0) fields.stop = stops;
  if (field("logprobs").checked) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
  const tools = parsed("tools", Array.isArray, "a JSON list of tools");
  if (tools && tools.length > 0) fields.tools = tools;
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  return { ...fields, ...parsed("more", isObject, "a JSON object") };
}
