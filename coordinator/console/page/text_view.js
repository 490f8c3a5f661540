// The text of a message: fenced code, `code` and **bold**, and everything else as it is.
import { el, fill } from "./dom.js";

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

function inline(text) {
  return text.split(INLINE).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return el("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return el("strong", {}, inline(part.slice(2, -2)));
    return part;
  });
}

function codeBlock(language, code) {
  const copy = el("button", { type: "button", class: "quiet", on: { click: () => navigator.clipboard?.writeText(code) } }, "Copy");
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "code"), copy),
    el("pre", { tabindex: "0", "aria-label": `Code: ${language || "plain"}` }, el("code", {}, code)),
  );
}

// A fence that is not closed yet, as in a stream, is code up to the end.
export function showText(node, text) {
  const parts = [];
  const lines = text.split("\n");
  let plain = [];
  const flush = () => {
    const joined = plain.join("\n").replace(/^\n+|\n+$/g, "");
    if (joined) parts.push(el("p", { class: "text" }, inline(joined)));
    plain = [];
  };
  for (let i = 0; i < lines.length; ++i) {
    const fence = lines[i].match(/^\s*```(\S*)\s*$/);
    if (!fence) {
      plain.push(lines[i]);
      continue;
    }
    flush();
    const code = [];
    for (++i; i < lines.length && !/^\s*```\s*$/.test(lines[i]); ++i) code.push(lines[i]);
    parts.push(codeBlock(fence[1], code.join("\n")));
  }
  flush();
  fill(node, parts);
}
