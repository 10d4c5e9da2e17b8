/** The theme: the system's, until the visitor chooses the other one. It runs before the page is drawn. */
"use strict";

(() => {
  const KEY = "ntloss-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  /** What was stored, or stores it; a browser may refuse both. */
  function remember(theme) {
    try {
      if (theme !== undefined) localStorage.setItem(KEY, theme);
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  }

  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

  function set(theme) {
    if (["dark", "light"].includes(theme)) root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  set(remember());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => (button.textContent = isDark() ? "Light theme" : "Dark theme");
    button.addEventListener("click", () => {
      const wanted = isDark() ? "light" : "dark";
      const isSystems = (wanted === "dark") === system.matches;
      set(isSystems ? "" : wanted);
      remember(isSystems ? "" : wanted);
      label();
    });
    system.addEventListener("change", label);
    button.hidden = false;
    label();
  });
})();
