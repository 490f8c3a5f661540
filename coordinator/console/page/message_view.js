// Messages of a conversation as elements.
import { el, fill } from "./dom.js";
import { count, rate, seconds } from "./format.js";
import { showText } from "./text_view.js";
import { tokenView } from "./token_view.js";

const button = (name, call, attributes = {}) =>
  el("button", { type: "button", class: "quiet", ...attributes, on: { click: call } }, name);

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // a call that is not whole yet
  }
}

// `edit`: called with the new text of a message of the user.
export function userView(message, { edit }) {
  const text = el("div", { class: "body" });
  const actions = el("div", { class: "actions" });
  const view = el("article", { class: "message user", "aria-label": "You" }, el("h2", {}, "You"), text, actions);
  const show = () => {
    fill(text, el("p", { class: "text" }, message.content));
    fill(actions, button("Edit", startEdit));
  };
  const startEdit = () => {
    const area = el("textarea", { rows: Math.min(12, message.content.split("\n").length + 1), "aria-label": "Your message" });
    area.value = message.content;
    const send = () => area.value.trim() && edit(area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") show();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    fill(text, area);
    fill(actions, button("Send again", send, { class: "primary" }), button("Cancel", show));
    area.focus();
  };
  show();
  return view;
}

// The result of a tool, which the user has given. `edit`: called when the user wants to change the result.
export function toolResultView(message, { edit }) {
  return el(
    "article",
    { class: "message tool", "aria-label": "Result of a tool" },
    el("h2", {}, `Result of ${message.name}`),
    el("pre", { tabindex: "0", "aria-label": "Result" }, message.content),
    el("div", { class: "actions" }, button("Edit", edit)),
  );
}

function toolCard(tool) {
  return el(
    "figure",
    { class: "code tool-call" },
    el("figcaption", {}, el("span", {}, "calls ", el("strong", {}, tool.name || "…"))),
    el("pre", { tabindex: "0", "aria-label": `Arguments of ${tool.name}` }, pretty(tool.arguments)),
  );
}

function toolForm(answer, sendResults) {
  const areas = answer.tools.map((tool) => el("textarea", { rows: 2, "aria-label": `Result of ${tool.name}` }));
  const form = el(
    "form",
    { class: "tool-form" },
    answer.tools.map((tool, i) => el("label", {}, `Result of ${tool.name}`, areas[i])),
    el("button", { type: "submit", class: "primary" }, "Send results"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.hidden = true;
    sendResults(areas.map((area) => area.value));
  });
  return form;
}

const CALLED = ["tool_calls", "stop"];  // "stop" ends the call of a tool that tool_choice names
const FINISHES = { length: "ended at its length limit", stopped: "stopped", tool_calls: "calls tools", abort: "aborted by the server", error: "ended by an error" };

function facts(answer) {
  const parts = [];
  const { usage } = answer;
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${count(usage.prompt_tokens)} tokens in${cached ? ` (${count(cached)} cached)` : ""}, ${count(usage.completion_tokens)} out`);
  }
  if (answer.first) parts.push(`first after ${seconds((answer.first - answer.started) / 1000)}`);
  const time = (answer.ended - answer.first) / 1000;
  if (usage && answer.first && usage.completion_tokens > 1 && time > 0)
    parts.push(`${rate((usage.completion_tokens - 1) / time)} tokens/s`);
  if (FINISHES[answer.finish]) parts.push(FINISHES[answer.finish]);
  return parts.join(" · ");
}

// Returns {node, update}: update() shows what the answer has become, at most once in a frame.
export function answerView(answer, { regenerate, sendResults }) {
  const thought = el("div", { class: "body" });
  const head = el("summary");
  const reasoning = el("details", { class: "reasoning" }, head, thought);
  const body = el("div", { class: "body" });
  const tools = el("div");
  const waiting = el("p", { class: "waiting" });
  const error = el("p", { class: "error", role: "alert" });
  const fact = el("p", { class: "facts" });
  const actions = el("div", { class: "actions" });
  const node = el(
    "article",
    { class: "message assistant", "aria-label": "Answer", "aria-busy": "true" },
    el("h2", {}, answer.model || "Answer"),
    reasoning, body, tools, waiting, error, fact, actions,
  );
  let shown = { content: null, reasoning: null, tools: "" };
  const show = () => {
    reasoning.hidden = !answer.reasoning;
    head.textContent = answer.thought ? `Reasoning, ${seconds((answer.thought - answer.thinks) / 1000)}` : "Reasoning …";
    head.classList.toggle("waiting", !answer.thought);
    if (answer.reasoning !== shown.reasoning) showText(thought, answer.reasoning);
    if (answer.content !== shown.content) showText(body, answer.content);
    const calls = JSON.stringify(answer.tools);
    if (calls !== shown.tools) fill(tools, answer.tools.map(toolCard));
    shown = { content: answer.content, reasoning: answer.reasoning, tools: calls };
    waiting.hidden = Boolean(answer.ended || answer.first);
    waiting.textContent = answer.waiting || "…";
    waiting.classList.toggle("reason", Boolean(answer.waiting));
    error.hidden = !answer.error;
    error.textContent = answer.error;
  };
  const end = () => {
    node.removeAttribute("aria-busy");
    fact.textContent = facts(answer);
    const asText = button("Copy", () => navigator.clipboard?.writeText(answer.content));
    const again = button("Regenerate", regenerate);
    fill(actions, again, answer.content && asText);
    if (answer.tools.length > 0 && CALLED.includes(answer.finish)) tools.append(toolForm(answer, sendResults));
    if (answer.tokens.length > 0) showTokens();
  };
  const showTokens = () => {
    const tokens = tokenView(answer.tokens);
    tokens.hidden = false;
    body.hidden = true;
    body.after(tokens);
    const toggle = button("Show as text", () => {
      tokens.hidden = !tokens.hidden;
      body.hidden = !tokens.hidden;
      toggle.textContent = tokens.hidden ? "Show probabilities" : "Show as text";
    });
    actions.append(toggle);
  };
  let due = 0;
  const update = () => {
    if (due) return;
    due = requestAnimationFrame(() => {
      due = 0;
      show();
      if (answer.ended) end();
    });
  };
  show();
  return { node, update };
}
