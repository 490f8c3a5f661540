// The tokens of an answer, each shaded by its probability. The arrow keys go from token to token.
import { el, fill } from "./dom.js";


// 0: all but certain; 5: below one in a hundred.
function levelOf(logprob) {
  const p = Math.exp(logprob);
  return [0.9, 0.6, 0.3, 0.1, 0.01].filter((bound) => p < bound).length;
}

const probability = (logprob) => `${(100 * Math.exp(logprob)).toPrecision(3)}\u00a0%`;
const shown = (token) => (token === "\n" ? "⏎" : token.replace(/\n/g, "⏎")) || "∅";

function describe(one) {
  const others = one.top.map((other) => `${shown(other.token)} ${probability(other.logprob)}`);
  return `“${shown(one.token)}” ${probability(one.logprob)}${others.length > 0 ? ` · most likely: ${others.join(", ")}` : ""}`;
}

export function tokenView(tokens) {
  const readout = el("output", { class: "readout" }, "Choose a token with the pointer or the arrow keys.");
  const run = el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens, shaded by probability" });
  let chosen = -1;
  const choose = (place) => {
    if (place < 0 || place >= tokens.length) return;
    run.children[chosen]?.classList.remove("chosen");
    chosen = place;
    run.children[chosen].classList.add("chosen");
    readout.textContent = describe(tokens[chosen]);
  };
  tokens.forEach((one, place) => {
    run.append(el("span", { class: `p${levelOf(one.logprob)}`, "data-place": place }, one.token));
  });
  run.addEventListener("pointerover", (event) => choose(Number(event.target.dataset?.place ?? -1)));
  run.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(tokens.length - 1, Math.max(0, chosen + step)));
  });
  const legend = el("p", { class: "legend" }, "Probability: ");
  ["≥ 90 %", "≥ 60 %", "≥ 30 %", "≥ 10 %", "≥ 1 %", "below"].forEach((name, level) => {
    legend.append(el("span", { class: `p${level}` }, name), " ");
  });
  const view = el("div", { class: "token-view" });
  fill(view, run, readout, legend);
  return view;
}
