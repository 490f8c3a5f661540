// Open requests, the first in the order of service. There may be far more than the rows.
import { byId, el, keyed, setText } from "./dom.js";
import { count, seconds } from "./format.js";

const KINDS = { running: "good", waiting: "wait", suspended: "warn", swapped: "warn", preempted: "warn" };

// Choices of one request have one id.
function numbered(requests) {
  const counts = new Map();
  return requests.map((one) => {
    const name = `${one.replica} ${one.request_id}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
    return { ...one, key: `${name} ${counts.get(name)}` };
  });
}

export function showRequests(model, detail) {
  const requests = numbered(detail.requests);
  const open = model.num_requests_running + model.num_requests_waiting;
  const shown = requests.length < open ? `; the first ${count(requests.length)} are shown` : "";
  setText(byId("requests-hint"), `${count(model.num_requests_running)} run, ${count(model.num_requests_waiting)} wait${shown}`);
  keyed(
    byId("request-rows"),
    requests,
    (one) => one.key,
    (one) => el("tr", {}, el("th", { scope: "row", class: "mono" }, one.request_id), el("td"), Array.from({ length: 6 }, () => el("td", { class: "number" }))),
    (row, one) => {
      const [, state, prompt, computed, output, blocks, preempted, age] = row.children;
      setText(state, one.state);
      state.dataset.state = KINDS[one.state] ?? "wait";
      setText(prompt, count(one.num_prompt_tokens));
      setText(computed, count(one.num_computed_tokens));
      setText(output, count(one.num_output_tokens));
      setText(blocks, count(one.num_blocks));
      setText(preempted, one.num_preemptions > 0 ? `${count(one.num_preemptions)}×` : "–");
      setText(age, seconds(one.age_s));
    },
  );
}
