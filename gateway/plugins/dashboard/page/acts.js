/** Acts: what the gateway is told to do, the buttons for it, the questions before it, and its result. */

import { may, post } from "./api.js";
import { h, put, show } from "./dom.js";
import { markdown } from "./markdown.js";

/** Carry out a command of the command table. `about`: `{place, agent}`. Return `{ok, text}`; it never throws. */
export const order = (words, about) => send("/api/orders", { words, ...about });

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
const resultOf = ({ ok, text }) => h("div.result", { class: ok ? "good" : "bad" }, markdown(text));

/** Show a result above the page; a screen reader says it. It stays until another one, or another view. */
export function tell(result) {
  const close = h("button.plain.close", { "aria-label": "Close the result", onclick: forgetResult }, "✕");
  show(document.getElementById("told"), h("div.toast", resultOf(result), close));
}

export const forgetResult = () => put(document.getElementById("told"));

/**
 * Ask a question with two buttons, below `more`. Return the values of the fields in `more` by name, or null if the
 * answer is no.
 */
export function ask(question, yes, ...more) {
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", question),
    more,
    h("div.acts", h("button", { value: "no", autofocus: true }, "Back"), h("button.strong", { value: "yes" }, yes)),
  );
  const dialog = h("dialog.ask", { "aria-label": question }, form);
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
 * Return a button for an act, as `gateway.core.route` describes one; null if the role may not. It carries out `words`, a
 * command about `place` or `agent`; or posts `body` to `path`, with the fields of `edit` edited first; or calls
 * `run(button)`, which returns `{ok, text}`. `style`: `yes` or `no`. `done()`: called after it has succeeded.
 */
export function act({ label, words, place, agent, path, body, edit: fields, run, confirm, style, role = "operate", title, done }) {
  if (!may(role)) return null;
  const question = confirm === true ? `${label}? This cannot be undone.` : confirm;
  const perform = (button) => {
    if (run) return run(button);
    if (words) return order(words, { place, agent });
    return fields ? edit(label, path, body, fields) : send(path, body);
  };
  const onclick = async ({ currentTarget: button }) => {
    if (button.ariaBusy === "true" || (question && !(await ask(question, label)))) return;
    button.ariaBusy = "true";
    const result = await perform(button);
    button.ariaBusy = "false";
    if (result) tell(result);
    if (result?.ok) done?.();
  };
  const key = JSON.stringify([label, words ?? path, place, agent, body]);
  return h("button", { key, class: style || (confirm ? "no" : ""), title, onclick }, label);
}

/** Return buttons in a row; null if the role may press none. `acts`: as for `act`, or nodes. */
export function acts(...all) {
  const made = all.map((one) => (one && !(one instanceof Node) ? act(one) : one)).filter(Boolean);
  return made.length ? h("div.acts", made) : null;
}

/** Return a choice of a name with a button. `words`: the command, without the name; `used`: the name chosen now. */
export function choice({ label, names, used, press, words, done, ...about }) {
  if (!may("operate") || !names.length) return null;
  const option = (name) => h("option", { value: name, selected: name === used }, name);
  const run = (button) => order([...words, button.previousSibling.value], about);
  return h("span.pair", { key: label }, h("select", { "aria-label": label }, names.map(option)), act({ label: press, run, done, ...about }));
}
