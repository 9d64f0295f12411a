/** Key bindings, their help, and the theme switch. */

import { h, show } from "./dom.js";

const PANELS = ["live", "channels", "agents", "share", "conversations", "turns", "outbox", "audit", "warnings"];
const THEMES = ["system", "light", "dark"];
const KEYS = [
  ["1 – 9", "go to a panel, from the live stream to the warnings"],
  ["/", "search the live stream"],
  ["p", "pause or continue the live stream"],
  ["t", "theme: the system's setting, light, dark"],
  ["↑ ↓ j k", "within a list; Home, End, Page Up and Page Down, too"],
  ["Enter", "open a conversation or a row"],
  ["← →", "read the values of the focused plot"],
  ["Esc", "close the search, a conversation or this help"],
  ["?", "this help"],
];

function theme(button, next = false) {
  const now = window.reverieTheme.get();
  if (next) window.reverieTheme.set(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  const said = window.reverieTheme.get();
  show(
    button,
    h("span", { "aria-hidden": "true" }, { system: "◐ ", light: "○ ", dark: "● " }[said]),
    h("span", { class: "word" }, said),
  );
  button.setAttribute("aria-label", `Theme: ${said}`);
}

/** Install the listeners. */
export function keys({ live, places }) {
  const help = document.getElementById("help");
  const button = document.getElementById("theme");
  show(
    document.getElementById("keys"),
    KEYS.map(([key, what]) => [
      h(
        "dt",
        {},
        key.split(" ").map((one) => (one === "–" ? "–" : h("kbd", {}, one))),
      ),
      h("dd", {}, what),
    ]),
  );
  theme(button);
  button.addEventListener("click", () => theme(button, true));
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  help.addEventListener("click", (event) => event.target === help && help.close());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("input, select, textarea")) return;
    const act = {
      "?": () => help.showModal(),
      t: () => theme(button, true),
      p: () => live.hold(!live.paused),
      "/": () => live.text.focus(),
      Escape: () => places.chosen && places.close(),
    }[event.key];
    const panel = document.getElementById("main").hidden ? null : PANELS[Number(event.key) - 1];
    if (act) {
      event.preventDefault();
      act();
    } else if (panel) {
      event.preventDefault();
      const element = document.getElementById(panel);
      element.scrollIntoView({ block: "start" });
      element.focus({ preventScroll: true });
    }
  });
}
