// Canvases that are as sharp as the screen, in the colours of the style sheet.

const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);
let colours = new Map();
window.addEventListener("themechange", () => (colours = new Map()));

// The colour that a custom property has now, dark or light.
export function colour(name) {
  if (!colours.has(name)) {
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

// Gives the canvas as many pixels as it covers, and returns its context, which counts in CSS pixels.
export function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}
