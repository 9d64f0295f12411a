/** Acts: buttons that have the gateway do something, and tell the result where they stand. */

import { may, post } from "./api.js";
import { h, show } from "./dom.js";
import { markdown } from "./markdown.js";

/** Results by the key of the act. A panel that is drawn again shows them again. */
const results = new Map();

/** Keys of acts under way: a panel that is drawn again has other buttons for them. */
const running = new Set();

/** Forget the results, as another view is opened. */
export const forgetResults = () => results.clear();

/** Carry out a command of the command table. `about`: `{place, agent}`. Return `{ok, text}`; it never throws. */
export const order = (words, about = {}) => send("/api/orders", { words, ...about });

/** Post a body and return `{ok, text}`; it never throws. */
export async function send(path, body) {
  try {
    const answer = await post(path, body);
    const text = answer.lines?.join("\n") ?? answer.message ?? "";
    return { ok: answer.ok !== false, text: text || "Done.", answer };
  } catch (error) {
    return { ok: false, text: error.message, status: error.status };
  }
}

/** Return the place of a result, empty as long as there is none. */
export function resultOf(key) {
  const place = h("div", { class: "result", "data-result": key });
  paint(place, results.get(key));
  return place;
}

function paint(place, result) {
  place.className = result ? `result ${result.ok ? "good" : "bad"}` : "result";
  show(place, result ? markdown(result.text) : []);
}

/** Show a result in all its places, and have a screen reader say it. */
export function tell(key, result) {
  results.set(key, result);
  for (const one of document.querySelectorAll(".result")) if (one.dataset.result === key) paint(one, result);
  document.getElementById("spoken").textContent = `${result.ok ? "" : "Not done: "}${result.text}`;
}

/** Ask a question with two buttons, above `more`. Return whether the answer is yes. */
export function ask(question, yes = "Yes", more = null) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-h").textContent = question;
  document.getElementById("ask-yes").textContent = yes;
  show(document.getElementById("ask-more"), more);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answer) =>
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }),
  );
}

/**
 * Return a button for an act; null if the role may not. `run`: does it, and returns `{ok, text}`; else `words`, a
 * command, with `about`; else `path` and `body`. `confirm`: a question to ask first. `done`: called after it.
 */
export function button({ label, key, run, words, about, path, body, confirm, style = "", role = "operate", done, title }) {
  if (!may(role)) return null;
  const mine = key ?? JSON.stringify([words ?? path, about ?? body]);
  const press = async () => {
    if (running.has(mine) || (confirm && !(await ask(confirm, label)))) return;
    running.add(mine);
    made.ariaBusy = "true";
    const result = await (run ?? (() => (words ? order(words, about) : send(path, body))))();
    running.delete(mine);
    made.ariaBusy = "false";
    tell(mine, result);
    done?.(result);
  };
  const made = h("button", { type: "button", class: style, title, "data-key": mine + label, "data-group": mine, on: { click: press } }, label);
  return made;
}

/** Return buttons, and `more`, with one place for their results. `acts`: as for `button`, with a common `key`. */
export function buttons(key, acts, more = null) {
  const made = acts.map((one) => button({ key, ...one })).filter(Boolean);
  return made.length ? h("div.acts", made, more ?? [], resultOf(key)) : null;
}

/** Return a choice of a name with a button. `run(name)`: as of `button`; `used`: the name that is chosen now. */
export function choice({ label, names, used, act, key, run, done }) {
  const option = (name) => h("option", { value: name, selected: name === used }, name);
  const pick = h("select", { "aria-label": label, "data-key": label }, names.map(option));
  return h("span.pair", pick, button({ label: act, key, run: () => run(pick.value), done }));
}
