// One answer of the chat route, read from its stream.
import { request } from "./api.js";
import { events } from "./sse.js";

export function newAnswer() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    tools: [],  // {id, name, arguments}
    tokens: [],  // {token, logprob, top: [{token, logprob}]}, where log-probabilities were asked for
    waiting: "",  // why nothing comes yet
    error: "",
    finish: "",
    usage: null,
    started: performance.now(),
    first: 0,  // when the first token came
    thinks: 0,  // when the first token of the reasoning came
    thought: 0,  // when the reasoning was over
    ended: 0,
  };
}

function addTool(answer, delta) {
  const place = delta.index ?? 0;
  const tool = (answer.tools[place] ??= { id: "", name: "", arguments: "" });
  if (delta.id) tool.id = delta.id;
  if (delta.function?.name) tool.name += delta.function.name;
  if (delta.function?.arguments) tool.arguments += delta.function.arguments;
}

function addTokens(answer, logprobs) {
  for (const one of logprobs?.content ?? []) {
    answer.tokens.push({
      token: one.token,
      logprob: one.logprob,
      top: (one.top_logprobs ?? []).map(({ token, logprob }) => ({ token, logprob })),
    });
  }
}

function add(answer, event) {
  if (event.error) throw new Error(event.error.message ?? "the stream ended with an error");
  if (event.usage) answer.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice || choice.index > 0) return;  // further choices are shown nowhere
  const delta = choice.delta ?? {};
  const thought = delta.reasoning ?? delta.reasoning_content;
  const speaks = Boolean(delta.content || delta.tool_calls);
  if (!answer.first && (speaks || thought)) answer.first = performance.now();
  if (!answer.thinks && thought) answer.thinks = performance.now();
  if (answer.thinks && !answer.thought && speaks) answer.thought = performance.now();
  if (delta.content) answer.content += delta.content;
  if (thought) answer.reasoning += thought;
  for (const tool of delta.tool_calls ?? []) addTool(answer, tool);
  addTokens(answer, choice.logprobs);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

// Reads the answer to `body` into `answer`; `changed` is called whenever there is more of it. An error is the answer's;
// an abort by `signal` is its end, with the text so far.
export async function readAnswer(body, answer, signal, changed) {
  try {
    const response = await request("/v1/chat/completions", { method: "POST", body, signal });
    for await (const { data, comment } of events(response)) {
      if (data === "[DONE]") break;
      if (comment !== undefined) answer.waiting = comment.startsWith("waiting:") ? comment.slice(8).trim() : answer.waiting;
      if (data !== undefined) {
        answer.waiting = "";
        add(answer, JSON.parse(data));
      }
      changed();
    }
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else answer.error = error.message;
  }
  answer.waiting = "";
  answer.ended = performance.now();
  answer.thought ||= answer.ended;
  changed();
}
