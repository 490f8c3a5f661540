// The ranks of a model: where each runs, its memory by tag, and how far its transition is.
import { byId, el, keyed, setText } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { stateOf } from "./model_rows.js";
import { hasEnded, phaseName, phasesOf } from "./transition_phases.js";

const TAGS = ["weights", "kv_cache", "workspace"];

const sum = (object) => Object.values(object ?? {}).reduce((all, one) => all + one, 0);
const deviceBytes = (rank) => sum(rank.bytes_by_tag) + (rank.graph_bytes ?? 0);
const awayBytes = (rank) => sum(rank.host_bytes_by_tag) + sum(rank.file_bytes_by_tag);

function parts(rank) {
  const known = TAGS.map((tag) => ({ tag, bytes: rank.bytes_by_tag?.[tag] ?? 0 }));
  return [...known, { tag: "graphs", bytes: rank.graph_bytes ?? 0 }, { tag: "host", bytes: awayBytes(rank) }];
}

const NAMES = { weights: "weights", kv_cache: "KV cache", workspace: "workspace", graphs: "graphs", host: "asleep" };

function showMemory(cell, rank, most) {
  const [text, bar] = cell.children;
  const used = parts(rank).filter((part) => part.bytes > 0);
  setText(text, used.length > 0 ? used.map((part) => `${NAMES[part.tag]} ${bytes(part.bytes)}`).join(", ") : "none");
  for (const [i, part] of parts(rank).entries()) {
    bar.children[i].style.width = `${most > 0 ? (100 * part.bytes) / most : 0}%`;
  }
}

function showTransition(cell, transition, rank) {
  const [text, bar, amount, phases] = cell.children;
  bar.hidden = !transition || hasEnded(transition);
  setText(phases, transition ? phasesOf(rank, transition) : "");
  if (!transition) {
    setText(text, "none yet");
    return setText(amount, "");
  }
  const name = transition.wakes_up ? "wake-up" : "sleep";
  const ended = { committed: "done in", aborted: "given up after" }[transition.phase];
  setText(text, ended
    ? `${name} ${ended} ${seconds(transition.seconds)}`
    : `${name}: ${phaseName(transition)}, ${seconds(transition.seconds)}`);
  setText(amount, ended ? bytes(transition.bytes_total) : `${percent(transition.bytes_done, transition.bytes_total)} of ${bytes(transition.bytes_total)}`);
  bar.max = Math.max(1, transition.bytes_total);
  bar.value = transition.bytes_done;
}

function makeRow(rank) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("span"), el("div", { class: "hint" })),
    el("td", {}, el("div", { class: "hint" }), el("div", { class: "memory", "aria-hidden": "true" }, parts(rank).map((part) => el("i", { class: part.tag })))),
    el("td", {}, el("div"), el("progress", { "aria-label": `Transition of rank ${rank.rank}` }), el("div", { class: "hint" }), el("div", { class: "hint" })),
    el("td", {}, el("div"), el("div", { class: "hint" })),
  );
}

export function showRanks(detail) {
  const { ranks } = detail;
  const several = detail.replicas.length > 0;
  const most = Math.max(0, ...ranks.map((rank) => deviceBytes(rank) + awayBytes(rank)));
  keyed(
    byId("rank-rows"),
    ranks,
    (rank) => `${rank.replica}.${rank.rank}`,
    makeRow,
    (row, rank) => {
      const [name, memory, transition, where] = row.children;
      setText(name.firstChild, several ? `${rank.replica}.${rank.rank}` : String(rank.rank));
      setText(name.lastChild, rank.error || rank.state);
      name.lastChild.dataset.state = rank.error ? "bad" : rank.state === "awake" ? "good" : "wait";
      setText(where.firstChild, `${rank.device} on ${rank.host}`);
      setText(where.lastChild, `process ${rank.pid}, ${bytes(rank.rss_bytes)}${rank.numa ? `, ${rank.numa}` : ""}`);
      showMemory(memory, rank, most);
      showTransition(transition, rank.transition, `${detail.model} ${rank.replica}.${rank.rank}`);
    },
  );
  const all = ranks.reduce((total, rank) => total + deviceBytes(rank), 0);
  setText(byId("ranks-hint"), `${count(ranks.length)} ranks hold ${bytes(all)} of device memory; weights version ${detail.weights_version || "none"}, epoch ${detail.group_epoch}, ${count(detail.num_recoveries)} recoveries`);
  showReplicas(detail.replicas);
}

function showReplicas(replicas) {
  byId("replicas").hidden = replicas.length === 0;
  keyed(
    byId("replica-rows"),
    replicas,
    (replica) => replica.replica,
    (replica) => el("tr", {}, el("th", { scope: "row" }, replica.replica), el("td"), Array.from({ length: 5 }, () => el("td", { class: "number" }))),
    (row, replica) => {
      const [, state, running, waiting, requests, recoveries, epoch] = row.children;
      setText(state, replica.error || stateOf(replica).text);
      state.dataset.state = replica.error ? "bad" : replica.state === "awake" ? "good" : "warn";
      setText(running, count(replica.num_requests_running));
      setText(waiting, count(replica.num_requests_waiting));
      setText(requests, count(replica.num_requests));
      setText(recoveries, count(replica.num_recoveries));
      setText(epoch, String(replica.group_epoch));
    },
  );
}
