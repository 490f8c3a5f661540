// Requests to the server that the page came from, and to no other: the page's Content-Security-Policy sees to it.
//
// The key is typed by the reader, and is kept in the tab's sessionStorage alone: the browser forgets it with the tab.
import { byId } from "./dom.js";

const KEY = "somnus.key";
const ROOT = new URL("..", import.meta.url);  // the server's, which a proxy may serve below a path of its own
let keyInMemory = "";  // where a browser forbids storage

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function key() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

function setKey(value) {
  keyInMemory = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // keyInMemory has the key.
  }
}

let asking = null;  // the promise of the dialog that is open
let declined = false;  // the reader has closed the dialog without a key, so looks that repeat open it no more

// Resolves to whether a key was given.
export function askForKey(reason = "") {
  if (asking) return asking;
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  byId("key-reason").textContent = reason || "Requests of this page carry the key. It stays in this tab.";
  input.value = key();
  asking = new Promise((resolve) => {
    const form = dialog.querySelector("form");
    const done = (given) => {
      form.removeEventListener("submit", submit);
      dialog.removeEventListener("close", cancel);
      if (dialog.open) dialog.close();
      asking = null;
      resolve(given);
    };
    const submit = (event) => {
      event.preventDefault();
      setKey(input.value.trim());
      declined = false;
      done(true);
    };
    const cancel = () => done(false);
    form.addEventListener("submit", submit);
    dialog.addEventListener("close", cancel);
    dialog.showModal();
    input.focus();
  });
  return asking;
}

export function keyButton(changed) {
  byId("key").addEventListener("click", async () => {
    if (await askForKey()) changed();
  });
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new ApiError(response.status, body.error?.message ?? body.message ?? text);
  } catch {
    return new ApiError(response.status, text || `HTTP ${response.status}`);
  }
}

// `path` begins with "/" and is below ROOT. Returns a response with status 200; throws an ApiError for any other. A 401
// asks for the key; once the reader has declined, only for what the reader does (POST), not for looks.
export async function request(path, { method = "GET", body = undefined, signal = undefined, asks = true } = {}) {
  const headers = {};
  if (key()) headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(new URL(`.${path}`, ROOT), {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  if (response.ok) return response;
  if (response.status === 401 && asks && !(declined && method === "GET")) {
    const again = await askForKey(key() ? "The server does not accept this key." : "The server asks for its key.");
    declined = !again;
    if (again) return request(path, { method, body, signal, asks });
  }
  throw await errorOf(response);
}

export const json = async (path, options) => (await request(path, options)).json();
