// The chat page: a conversation, which lives as long as the page does.
import { keyButton, json } from "./api.js";
import { newAnswer, readAnswer } from "./answer.js";
import { announce, byId, el, themeButton } from "./dom.js";
import { answerView, toolResultView, userView } from "./message_view.js";
import { refresh, watchModels } from "./models.js";
import { openSettings, requestFields, systemPrompt } from "./settings.js";

let messages = [];  // of the conversation, in order; `node` is a message's element
let running = null;  // the AbortController of the answer under way

const transcript = byId("transcript");
const box = byId("prompt");

function wire(message) {
  if (message.role === "assistant") {
    const one = { role: "assistant", content: message.content };
    if (message.reasoning) one.reasoning = message.reasoning;  // a template leaves out what its model must not see again
    if (message.tools.length > 0) {
      one.tool_calls = message.tools.map((tool) => ({ id: tool.id, type: "function", function: { name: tool.name, arguments: tool.arguments } }));
    }
    return one;
  }
  if (message.role === "tool") return { role: "tool", tool_call_id: message.id, content: message.content };
  return { role: "user", content: message.content };
}

function body() {
  const system = systemPrompt();
  const isEmpty = (message) => message.role === "assistant" && !message.content && message.tools.length === 0;
  const turns = messages.filter((message) => !isEmpty(message)).map(wire);
  if (system) turns.unshift({ role: "system", content: system });
  return { model: byId("model").value, messages: turns, stream: true, stream_options: { include_usage: true }, ...requestFields() };
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

function add(message, node) {
  message.node = node;
  messages.push(message);
  transcript.append(node);
  byId("empty").hidden = true;
}

// Forgets the message at `place` and all that follow.
function cut(place) {
  for (const message of messages.splice(place)) message.node.remove();
  byId("empty").hidden = messages.length > 0;
}

function setRunning(controller) {
  running = controller;
  byId("stop").hidden = !running;
  byId("send").hidden = Boolean(running);
}

const scroller = byId("scroller");
const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;

async function answer() {
  let request;
  try {
    request = body();
  } catch (error) {
    return problem(error.message);
  }
  problem("");
  const controller = new AbortController();
  const message = { ...newAnswer(), model: request.model };
  const view = answerView(message, {
    regenerate: () => regenerate(message),
    sendResults: (results) => sendResults(message, results),
  });
  add(message, view.node);
  scroller.scrollTop = scroller.scrollHeight;
  setRunning(controller);
  announce("The answer begins.");
  await readAnswer(request, message, controller.signal, () => {
    const follows = isAtEnd();
    view.update();
    if (follows) requestAnimationFrame(() => (scroller.scrollTop = scroller.scrollHeight));
  });
  if (running === controller) setRunning(null);
  announce(message.error ? "The answer has ended with an error." : "The answer is complete.");
}

function stop() {
  running?.abort();
}

function ask(text) {
  const message = { role: "user", content: text };
  add(message, userView(message, { edit: (changed) => edit(message, changed) }));
  return answer();
}

function edit(message, text) {
  stop();
  cut(messages.indexOf(message));
  ask(text);
}

function regenerate(message) {
  stop();
  cut(messages.indexOf(message));
  answer();
}

function sendResults(message, results) {
  stop();
  cut(messages.indexOf(message) + 1);
  message.tools.forEach((tool, i) => {
    const result = { role: "tool", id: tool.id, name: tool.name, content: results[i] };
    add(result, toolResultView(result, { edit: () => editResults(message) }));
  });
  answer();
}

// Shows the form of a tool's call again, with what was sent.
function editResults(message) {
  const form = message.node.querySelector(".tool-form");
  form.hidden = false;
  form.querySelector("textarea").focus();
}

function send(event) {
  event?.preventDefault();
  const text = box.value.trim();
  if (!text || running) return;
  box.value = "";
  fit();
  ask(text);
}

function fit() {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 240)}px`;
}

function openDrawer() {
  const toggle = byId("toggle-settings");
  const panel = byId("settings");
  const show = (open) => {
    panel.hidden = !open;
    toggle.setAttribute("aria-expanded", String(open));
  };
  toggle.addEventListener("click", () => {
    show(panel.hidden);
    if (!panel.hidden) panel.querySelector("textarea, input").focus();
  });
  byId("close-settings").addEventListener("click", () => {
    show(false);
    toggle.focus();
  });
  show(matchMedia("(min-width: 70rem)").matches);
}

function showView(name) {
  document.body.dataset.view = name;
  for (const view of ["chat", "models"]) {
    byId(`view-${view}`).hidden = view !== name;
    byId(`tab-${view}`).setAttribute("aria-current", view === name ? "page" : "false");
  }
  if (name === "models") refresh();
}

// Operators' page has a port of its own.
async function linkOperations() {
  const info = await json("/server_info", { asks: false }).catch(() => null);
  if (!info?.version) return;
  byId("version").textContent = `Somnus ${info.version}`;
  if (!info.admin_port || String(info.admin_port) === location.port) return;
  const address = `${info.admin_tls ? "https" : "http"}://${location.hostname}:${info.admin_port}/`;
  byId("operations").append(" · Operators' page: ", el("a", { href: address, rel: "noreferrer" }, `port ${info.admin_port}`));
}

byId("composer").addEventListener("submit", send);
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", () => {
  stop();
  cut(0);
  problem("");
  box.focus();
});
box.addEventListener("input", fit);
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
});
for (const view of ["chat", "models"]) {
  byId(`tab-${view}`).addEventListener("click", () => showView(view));
}
themeButton();
keyButton(refresh);
openSettings();
openDrawer();
showView("chat");
watchModels().then(linkOperations);
box.focus();
