// Elements of the page. Text becomes text nodes and nothing else, so no answer of a model and no name of a model can
// become markup.

export const byId = (id) => document.getElementById(id);

// Makes an element. `props`: attributes by their names; `class`; `on`: listeners by events. A child is a node or a text;
// null and false are left out.
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

// Writes the text where it differs: an unchanged node costs no layout, and is not read out again.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps the children of `parent` in the order of `items`, one node for each key, which `make` makes and `update` fills.
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.keyedNodes ?? (parent.keyedNodes = new Map());
  const live = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    live.add(key);
    let node = known.get(key);
    if (!node) known.set(key, (node = make(item)));
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of known) {
    if (live.has(key)) continue;
    node.remove();
    known.delete(key);
  }
}

// Tells readers of the screen, without moving the focus.
export function announce(text) {
  const node = byId("announcer");
  if (node) node.textContent = text;
}

// The button that goes through the system's colours, dark and light.
export function themeButton() {
  const order = ["", "dark", "light"];
  const names = { "": "Colours: as the system", dark: "Colours: dark", light: "Colours: light" };
  const button = byId("theme");
  const root = document.documentElement;
  const show = () => {
    const now = root.dataset.theme ?? "";
    button.textContent = { "": "◐", dark: "●", light: "○" }[now];
    button.setAttribute("aria-label", names[now]);
    button.title = names[now];
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    try {
      if (next) localStorage.setItem("somnus.theme", next);
      else localStorage.removeItem("somnus.theme");
    } catch {
      // The choice then lasts as long as the page.
    }
    show();
    window.dispatchEvent(new Event("themechange"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    window.dispatchEvent(new Event("themechange")),
  );
  show();
}
