/** Key bindings, their help, and the theme switch. */

import { h, show } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const KEYS = [
  [": Ctrl+K", "command box: any command, any view"],
  ["1 – 9", "go to a view, in the order of the menu"],
  ["/", "search in the view that is shown"],
  ["p", "pause or continue the live stream"],
  ["t", "theme: the system's setting, light, dark"],
  ["↑ ↓ j k", "within a list; Home, End, Page Up and Page Down, too"],
  ["Enter", "open a conversation or a row; send what is written"],
  ["← →", "read the values of the focused plot"],
  ["Esc", "close what is open"],
  ["?", "this help"],
];

function theme(button, next = false) {
  const now = window.reverieTheme.get();
  if (next) window.reverieTheme.set(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  const said = window.reverieTheme.get();
  show(button, h("span", { "aria-hidden": "true" }, { system: "◐ ", light: "○ ", dark: "● " }[said]), h("span.word", said));
  button.setAttribute("aria-label", `Theme: ${said}`);
}

/** Install the listeners. `search()`: the search field of the view that is shown; `go(index)`: shows a view. */
export function keys({ live, command, search, go }) {
  const help = document.getElementById("help");
  const button = document.getElementById("theme");
  const names = (key) => key.split(" ").map((one) => (one === "–" ? "–" : h("kbd", one)));
  show(document.getElementById("keys"), KEYS.map(([key, what]) => [h("dt", names(key)), h("dd", what)]));
  theme(button);
  button.addEventListener("click", () => theme(button, true));
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  help.addEventListener("click", (event) => event.target === help && help.close());
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const box = (event.ctrlKey || event.metaKey) && event.key === "k";
    if (!box && (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea"))) return;
    const act = {
      "?": () => help.showModal(),
      ":": command,
      t: () => theme(button, true),
      p: () => live.hold(!live.paused),
      "/": () => search()?.focus(),
    }[event.key];
    if (box) command();
    else if (act) act();
    else if (/^[1-9]$/.test(event.key)) go(Number(event.key) - 1);
    else return;
    event.preventDefault();
  });
}
