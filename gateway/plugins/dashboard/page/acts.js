/** Acts: what the gateway is told to do, the buttons for it, the questions before it, and its result. */

import { may, post } from "./api.js";
import { h, show } from "./dom.js";
import { markdown } from "./markdown.js";

/** Carry out a command of the command table. `about`: `{place, agent}`. Return `{ok, text}`; it never throws. */
export const order = (words, about = {}) => send("/api/orders", { words, ...about });

/** Post a body and return `{ok, text, answer}`; it never throws. */
export async function send(path, body) {
  try {
    const answer = await post(path, body);
    return { ok: answer.ok !== false, text: answer.lines?.join("\n") || answer.message || "Done.", answer };
  } catch (error) {
    return { ok: false, text: error.message };
  }
}

/** Return a result as nodes. */
export const resultOf = ({ ok, text }) => h("div.result", { class: ok ? "good" : "bad" }, markdown(text));

/** Show a result above the page; a screen reader says it. It stays until another one, or another view. */
export function tell(result) {
  const close = h("button.plain.close", { type: "button", "aria-label": "Close the result", onclick: forgetResult }, "✕");
  show(document.getElementById("told"), h("div.toast", resultOf(result), close));
}

export const forgetResult = () => show(document.getElementById("told"));

/**
 * Ask a question with two buttons, below `more`. Return the values of the fields in `more` by name, or null if the
 * answer is no.
 */
export function ask(question, yes = "Yes", ...more) {
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", question),
    more,
    h("div.acts", h("button", { value: "no", autofocus: true }, "Back"), h("button.strong", { value: "yes" }, yes)),
  );
  const dialog = h("dialog.ask", { "aria-label": question, closedby: "any" }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((answer) => {
    dialog.onclose = () => {
      dialog.remove();
      answer(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
    };
  });
}

/** Have the fields of a body changed, and post it, until it is accepted. Return the result, or null. */
async function edit(label, path, body, fields) {
  let result = null;
  do {
    const field = ([name, text]) => h("label", name, h("textarea", { name, autofocus: true, rows: 6 }, String(text)));
    fields = await ask(label, "Save", result && resultOf(result), Object.entries(fields).map(field));
    result = fields && (await send(path, { ...body, ...fields }));
  } while (result && !result.ok);
  return result;
}

/**
 * Return a button for an act; null if the role may not. `run(button)`: does it, and returns `{ok, text}`; else `words`,
 * a command, with `about`; else `path` and `body`, whose fields in `fields` are edited first. `confirm`: a question to
 * ask first. `done(result)`: called after it.
 */
export function act({ label, run, words, about, path, body, fields, confirm, style, role = "operate", title, done }) {
  if (!may(role)) return null;
  const press = async ({ currentTarget: button }) => {
    if (button.ariaBusy === "true" || (confirm && !(await ask(confirm, label)))) return;
    button.ariaBusy = "true";
    const doing = run?.(button) ?? (words ? order(words, about) : fields ? edit(label, path, body, fields) : send(path, body));
    const result = await doing;
    button.ariaBusy = "false";
    if (!result) return;
    tell(result);
    done?.(result);
  };
  const key = JSON.stringify([label, words ?? path, about ?? body]);
  return h("button", { type: "button", key, class: style, title, onclick: press }, label);
}

/** Return buttons in a row; null if the role may press none. `acts`: as for `act`, or nodes. */
export function acts(...all) {
  const made = all.map((one) => (one && !(one instanceof Node) ? act(one) : one)).filter(Boolean);
  return made.length ? h("div.acts", made) : null;
}

/** Return a choice of a name with a button. `words`: the command, without the name; `used`: the name chosen now. */
export function choice({ label, names, used, press, words, about, done }) {
  if (!may("operate") || !names.length) return null;
  const option = (name) => h("option", { value: name, selected: name === used }, name);
  const run = (button) => order([...words, button.previousSibling.value], about);
  return h("span.pair", { key: label }, h("select", { "aria-label": label }, names.map(option)), act({ label: press, run, about, done }));
}
