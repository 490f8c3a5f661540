// The blocks of the KV cache, a cell for each block or for each so many blocks: who holds it, and how many share it.
import { colour, prepare } from "./canvas.js";
import { byId, el, keyed, setText } from "./dom.js";
import { count, percent, seconds } from "./format.js";

// The letters of a map: '.' free, 'c' cached, '1' to '9' held so often, '+' more often, 'x' out of use.
const COLOURS = { ".": "free", c: "cached", 1: "held", 2: "shared2", 3: "shared3", 4: "shared3" };
const colourOf = (letter) => colour(COLOURS[letter] ?? "shared5");

function nameOf(letter) {
  if (letter === ".") return "free";
  if (letter === "c") return "free, with cached contents";
  if (letter === "x") return "out of use: the cache was shrunk";
  return letter === "1" ? "held by one sequence or pin" : `shared by ${letter === "+" ? "10 or more" : letter}`;
}

// The grid is as wide as there is room, with cells of 4 to 9 pixels.
function layout(width, cells) {
  const size = Math.max(4, Math.min(9, Math.floor(Math.sqrt((width * 170) / Math.max(1, cells)))));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, height: Math.ceil(cells / columns) * size };
}

function draw(node, map) {
  const canvas = node.lastChild;
  const width = node.clientWidth;
  node.map = map;  // drawn as soon as the node has a width
  if (width === 0) return;
  const grid = layout(width, map.cells.length);
  const drawn = `${width} ${colour("held")} ${map.cells}`;
  if (node.drawn === drawn) return;
  Object.assign(node, { drawn, grid });
  canvas.style.height = `${grid.height}px`;
  const context = prepare(canvas, width, grid.height);
  const gap = grid.size > 5 ? 1 : 0.5;
  context.lineWidth = 0.5;
  for (let i = 0; i < map.cells.length; ++i) {
    const cell = [(i % grid.columns) * grid.size, Math.floor(i / grid.columns) * grid.size, grid.size - gap, grid.size - gap];
    if (map.cells[i] === "x") {
      context.strokeStyle = colour("unused");
      context.strokeRect(cell[0] + 0.5, cell[1] + 0.5, cell[2] - 1, cell[3] - 1);
    } else {
      context.fillStyle = colourOf(map.cells[i]);
      context.fillRect(...cell);
    }
  }
}

function describe(node, event) {
  if (!node.grid) return;
  const box = node.lastChild.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / node.grid.size);
  const place = Math.floor((event.clientY - box.top) / node.grid.size) * node.grid.columns + column;
  const letter = node.map.cells[place];
  if (!letter || column >= node.grid.columns) return;
  setText(byId("kv-detail"), `Block ${count(place * node.map.blocks_per_cell + 1)}: ${nameOf(letter)}.`);
}

function make(map) {
  const name = el("p", { class: "replica-name" });
  const canvas = el("canvas", { role: "img" });
  const node = el("div", {}, name, canvas);
  canvas.addEventListener("pointermove", (event) => describe(node, event));
  window.addEventListener("themechange", () => draw(node, node.map ?? map));
  new ResizeObserver(() => node.map && draw(node, node.map)).observe(node);
  return node;
}

function summary(map) {
  const counts = { free: 0, cached: 0, held: 0, shared: 0, unused: 0 };
  for (const letter of map.cells) {
    if (letter === ".") ++counts.free;
    else if (letter === "c") ++counts.cached;
    else if (letter === "1") ++counts.held;
    else if (letter === "x") ++counts.unused;
    else ++counts.shared;
  }
  const all = map.cells.length;
  return `KV blocks: ${percent(counts.free, all)} free, ${percent(counts.cached, all)} cached, ${percent(counts.held, all)} held once, ${percent(counts.shared, all)} shared, ${percent(counts.unused, all)} out of use`;
}

export function showKvMaps(model, detail) {
  const maps = detail.kv_maps;
  keyed(
    byId("kv-maps"),
    maps,
    (map) => map.replica,
    make,
    (node, map) => {
      const every = map.blocks_per_cell > 1 ? `one of ${map.blocks_per_cell} blocks` : "every block";
      node.firstChild.hidden = maps.length < 2 && map.blocks_per_cell === 1 && map.age_s < 3;
      setText(node.firstChild, `${maps.length > 1 ? `Replica ${map.replica}, ` : ""}${every}${map.age_s >= 3 ? `, ${seconds(map.age_s)} ago` : ""}`);
      node.lastChild.setAttribute("aria-label", summary(map));
      draw(node, map);
    },
  );
  const { blocks } = detail;
  const used = model.total_blocks - model.free_blocks;
  const host = blocks.total_host_blocks > 0 ? `; host tier ${count(blocks.used_host_blocks)} of ${count(blocks.total_host_blocks)}` : "";
  const pinned = blocks.pinned_blocks > 0 ? `, ${count(blocks.pinned_blocks)} pinned` : "";
  const sleeps = detail.ranks.length > 0 && detail.ranks.every((rank) => !rank.bytes_by_tag?.kv_cache);
  setText(byId("kv-hint"), `${sleeps ? "without memory, asleep: " : ""}${count(used)} of ${count(model.total_blocks)} blocks of ${blocks.block_size} tokens in use${pinned}${host}`);
}
