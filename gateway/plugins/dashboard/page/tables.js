/** Records as people read them: tables, and lists of facts. The names of fields say how their values are shown. */

import { acts } from "./acts.js";
import { may } from "./api.js";
import { chip, empty, h, said } from "./dom.js";
import { dollars, share, time, tokens, took } from "./format.js";
import { markdown } from "./markdown.js";
import { address } from "./views.js";

const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;
const MARKUP = /\n|[*`#|]|^- /;
/** Colours of words that tell a state. */
const TONES = {
  done: ["up", "running", "sent", "replied", "done"],
  open: ["connecting", "starting", "stopping", "waiting", "sending", "interrupted", "warning"],
  bad: ["down", "refused", "cut off", "uncertain", "failed", "not done", "error", "critical", "nobody"],
};
/** Return the colour of a state, or undefined. */
export const toneOf = (state) => Object.keys(TONES).find((tone) => TONES[tone].includes(state));
/** Return a state as a label. */
export const state = (word) => chip(word, toneOf(word));

/** Return a value as a node. */
function show(name, value) {
  if (value instanceof Node) return value;
  if ((value ?? "") === "") return "–";
  if (Array.isArray(value)) return said(value.join(", ") || "–");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name.endsWith("_usd")) return dollars(value);
  if (name.endsWith("_s")) return took(value);
  if (name.endsWith("_tokens")) return tokens(value);
  if (name.endsWith("_share")) return share(value);
  if (ISO.test(value)) return time(value);
  return toneOf(value) ? state(value) : said(value);
}

const title = (name) => name.replace(/_(usd|s|tokens|share)$/, "").replaceAll("_", " ");

/** Return the description list of a record; fields without a value are left out. */
export const facts = (record) =>
  h(
    "dl.facts",
    Object.entries(record)
      .filter(([, value]) => value !== false && value?.length !== 0 && (value ?? null) !== null)
      .map(([name, value]) => [h("dt", title(name)), h("dd", show(name, value))]),
  );

/** Return all that an entry of the log says. */
export function details({ text, result, message, conversation, title: place, seq: entry, ...more }) {
  const words = text ?? result ?? message;
  const link = conversation && h("a", { href: address("conversations", conversation) }, said(place ? `${place} (${conversation})` : conversation));
  return [words === undefined ? null : h("pre", said(words)), facts({ conversation: link, ...more, entry })];
}

/**
 * Return a table of records with the same fields, or a paragraph with the words `none`. `_tone` of a record is the class of its row, and `_actions` are
 * buttons: see `gateway.core.route`. `again()`: called after one of them has changed something.
 */
export function table(label, records, none, again) {
  if (!records.length) return empty(none);
  const names = Object.keys(records[0]).filter((name) => !name.startsWith("_"));
  const kind = (name) => (records.every((one) => typeof one[name] === "number") ? "num" : null);
  const cell = (one) => (name) =>
    h("td", { class: kind(name), "data-name": title(name) }, MARKUP.test(one[name]) && typeof one[name] === "string" ? h("div.words", markdown(one[name])) : show(name, one[name]));
  const acting = may("operate") && records.some((one) => one._actions?.length);
  const row = (one) => h("tr", { class: one._tone }, names.map(cell(one)), acting ? h("td", acts(...(one._actions ?? []).map((action) => ({ ...action, done: again })))) : null);
  return h(
    "table",
    { "aria-label": label },
    h("thead", h("tr", names.map((name) => h("th", { scope: "col", class: kind(name) }, said(title(name)))), acting ? h("th", h("span.unseen", "acts")) : null)),
    h("tbody", records.map(row)),
  );
}
