// Numbers for people. A space that does not break keeps a number and its unit in one line.

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${unit === 0 ? value : value.toPrecision(value >= 1000 ? 4 : 3)}\u00a0${units[unit]}`;
}

export function seconds(value) {
  if (value < 0.001) return `${Math.round(value * 1e6)}\u00a0µs`;
  if (value < 1) return `${(value * 1000).toPrecision(3)}\u00a0ms`;
  if (value < 100) return `${value.toPrecision(3)}\u00a0s`;
  if (value < 7200) return `${Math.floor(value / 60)}\u00a0min ${Math.round(value % 60)}\u00a0s`;
  return `${Math.floor(value / 3600)}\u00a0h ${Math.round((value % 3600) / 60)}\u00a0min`;
}

export const count = (value) => Math.round(value).toLocaleString("en-US");

export function rate(value) {
  if (value >= 10000) return `${(value / 1000).toPrecision(3)}\u00a0k`;
  return value >= 100 ? count(value) : value.toPrecision(value >= 10 ? 3 : 2);
}

export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 1 : 0)}\u00a0%` : "–");

export const clock = (date) => date.toLocaleTimeString("en-GB");
