/* Loaded before the first paint, so that the other theme does not flash. */
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
    /** Return `system`, `light` or `dark`. */
    get: () => root.dataset.theme ?? "system",
    set(theme) {
      apply(theme);
      try {
        localStorage.setItem(key, theme);
      } catch {
        // then it holds for this page only
      }
    },
  };
})();
