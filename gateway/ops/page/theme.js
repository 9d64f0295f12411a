/* Loaded before anything is painted, so that a chosen theme does not flash in the other one. */
"use strict";
(() => {
  const key = "reverie.theme";
  const root = document.documentElement;
  const said = () => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null; // storage may be forbidden
    }
  };
  const apply = (theme) =>
    theme === "light" || theme === "dark" ? (root.dataset.theme = theme) : delete root.dataset.theme;
  apply(said());
  window.reverieTheme = {
    /** `system`, `light` or `dark`. */
    get: () => root.dataset.theme ?? "system",
    set(theme) {
      apply(theme);
      try {
        localStorage.setItem(key, theme);
      } catch {
        // then it holds for this page
      }
    },
  };
})();
