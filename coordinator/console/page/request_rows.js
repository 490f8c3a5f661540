// Open requests in the order of service. There may be many thousands: the table has rows for the requests around the part
// that can be seen, and one high row above and one below in place of all others.
import { byId, el, keyed, setText } from "./dom.js";
import { count, seconds } from "./format.js";

const KINDS = { running: "good", waiting: "wait", suspended: "warn", swapped: "warn", preempted: "warn" };
const ROWS = 80;  // some five times as many as the box shows
const ABOVE = 30;  // of ROWS, above the first row that can be seen

let requests = [];  // all that the server has named, each with a key
let counts = { running: 0, waiting: 0 };  // of open requests, of which the server may name fewer
let rowHeight = 26;  // until there is a row that can be measured

// Choices of one request have one id.
function numbered(list) {
  const times = new Map();
  return list.map((one) => {
    const name = `${one.replica} ${one.request_id}`;
    times.set(name, (times.get(name) ?? 0) + 1);
    return { ...one, key: `${name} ${times.get(name)}` };
  });
}

function sought() {
  const text = byId("request-filter").value.trim().toLowerCase();
  if (!text) return requests;
  return requests.filter((one) => one.request_id.toLowerCase().includes(text) || one.state.startsWith(text));
}

const makeRow = () =>
  el("tr", {}, el("th", { scope: "row", class: "mono" }), el("td"), Array.from({ length: 6 }, () => el("td", { class: "number" })));

function fillRow(row, one) {
  const [id, state, prompt, computed, output, blocks, preempted, age] = row.children;
  if (id.textContent !== one.request_id) {
    id.textContent = one.request_id;
    id.title = one.request_id;
  }
  setText(state, one.state);
  state.dataset.state = KINDS[one.state] ?? "wait";
  setText(prompt, count(one.num_prompt_tokens));
  setText(computed, count(one.num_computed_tokens));
  setText(output, count(one.num_output_tokens));
  setText(blocks, count(one.num_blocks));
  setText(preempted, one.num_preemptions > 0 ? `${count(one.num_preemptions)}×` : "–");
  setText(age, seconds(one.age_s));
}

function stretch(id, rows) {
  const cell = byId(id);
  cell.closest("tbody").hidden = rows <= 0;
  cell.style.height = `${Math.max(0, rows) * rowHeight}px`;
}

function showRows(found) {
  const top = Math.floor(byId("requests-box").scrollTop / rowHeight);
  const first = Math.max(0, Math.min(top - ABOVE, found.length - ROWS));
  const shown = found.slice(first, first + ROWS);
  keyed(byId("request-rows"), shown, (one) => one.key, makeRow, fillRow);
  [...byId("request-rows").children].forEach((row, i) => row.setAttribute("aria-rowindex", first + i + 2));  // 1: the head
  byId("requests-table").setAttribute("aria-rowcount", found.length + 1);
  rowHeight = byId("request-rows").firstElementChild?.getBoundingClientRect().height || rowHeight;
  stretch("requests-above", first);
  stretch("requests-below", found.length - first - shown.length);
}

function show() {
  const found = sought();
  byId("requests-box").hidden = found.length === 0;
  byId("no-requests").hidden = found.length > 0;
  setText(byId("no-requests"), requests.length > 0 ? "No request has this in its id or as its state." : "No request is open.");
  const known = requests.length < counts.running + counts.waiting ? `; the first ${count(requests.length)} are here` : "";
  const fit = found.length < requests.length ? `; ${count(found.length)} found` : "";
  setText(byId("requests-hint"), `${count(counts.running)} run, ${count(counts.waiting)} wait${known}${fit}`);
  showRows(found);
}

export function showRequests(model, detail) {
  requests = numbered(detail.requests);
  counts = { running: model.num_requests_running, waiting: model.num_requests_waiting };
  show();
}

export function openRequests() {
  let due = 0;
  byId("requests-box").addEventListener("scroll", () => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      show();
    });
  });
  byId("request-filter").addEventListener("input", () => {
    byId("requests-box").scrollTop = 0;
    show();
  });
}
