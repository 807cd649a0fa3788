// What is pleasant and not needed: copying, keys. All text stays text.
"use strict";
for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.setAttribute("aria-label", "Copy " + button.dataset.copy);
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(button.dataset.copy).then(() => {
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    }, () => { button.textContent = "not allowed"; });
  });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const found = {
    "/": () => document.querySelector("input[type=search], main input:not([type=hidden])"),
    "n": () => document.querySelector("a[rel=next]"),
    "p": () => document.querySelector("a[rel=prev]"),
    "h": () => document.querySelector("a[data-home]"),
  }[event.key]?.();
  if (!found) return;
  event.preventDefault();
  if (event.key === "/") { found.focus(); } else { found.click(); }
});
