// Sets the colours before the page is painted: the reader's choice, or else the system's. A classic script, since a
// module would run after the first paint.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("somnus.theme");
  } catch {
    // A browser that forbids storage has the system's colours.
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
