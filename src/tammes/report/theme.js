// Light and dark: the reader's choice lasts while the page is open, and for as long as the browser lets it.
(() => {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("tammes-theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("tammes-theme", root.dataset.theme); } catch { /* a page from disk may not keep anything */ }
    document.dispatchEvent(new Event("theme"));
  });
})();
