/** What waits for a person's yes or no, and the figures of today. */

import { acts } from "./acts.js";
import { chip, empty, h, placed, quiet, said } from "./dom.js";
import { bytes, dollars, input, share, since, time, tokens } from "./format.js";
import { markdown } from "./markdown.js";

const KINDS = { pairing: "stranger", room: "room", approval: "tool call", note: "note", link: "account" };

/** Return the cards of what waits. `done()`: called after a decision. */
export function waiting(items, done) {
  if (items.length) return h("ul.cards", items.map((one) => card(one, done)));
  return h(
    "div.calm-state",
    h("span.tick.done", { "aria-hidden": "true" }, "✓"),
    h("p", h("strong", "Nothing waits for you.")),
    empty("Strangers who write for the first time, new rooms, tool calls and notes that need your yes appear here."),
  );
}

function card(one, done) {
  const where = one.place ? placed(one.place) : said(one.place_title);
  // in a call each character counts
  const words = one.kind === "note" ? markdown(one.words) : h(one.kind === "approval" || one.kind === "tool" ? "pre" : "p", said(one.words));
  const decision = ({ label, words, place, agent, role, style }) => ({
    label,
    words,
    about: { place, agent },
    role,
    style: { yes: "strong", no: "danger" }[style],
    done,
  });
  return h(
    "li.card",
    { key: one.id },
    h(
      "div.top",
      chip(KINDS[one.kind] ?? one.kind, "open"),
      where.textContent && where.textContent !== one.who ? quiet("in ", where) : null,
      h("span.spring"),
      one.since ? quiet(time(one.since, `${since(one.since)} ago`)) : null,
    ),
    h("p.what", one.who ? [said(one.who, { class: "who" }), " "] : null, said(one.what)),
    one.words ? h("blockquote", words) : null,
    one.until ? h("p.quiet", "It waits until ", time(one.until), ".") : null,
    acts(...one.actions.map(decision)),
  );
}

/** Return the figures of today, from `/api/status`. */
export function today({ today: sum, agents, store }) {
  const total = (name) => agents.reduce((all, one) => all + one[name], 0);
  const full = store.full_on ? `disk full on ${store.full_on}` : "the disk lasts for years";
  const growth = store.bytes_per_day === null ? "growth is known after a day" : `+${bytes(store.bytes_per_day)} a day; ${full}`;
  return [
    ["spent today", dollars(sum.cost_usd), "since midnight UTC"],
    ["read from the cache", share(sum.read_share), `${tokens(sum.read_tokens)} tokens`],
    ["requests to models", sum.requests, `${tokens(input(sum))} tokens in, ${tokens(sum.output_tokens)} out`],
    ["turns on its own", total("turns_today"), `of ${total("daily_turns")} a day`],
    ["cost of its own turns", dollars(total("spent_today_usd")), `of ${dollars(total("daily_cost_usd"))}`],
    ["store", bytes(store.size_bytes), growth],
  ].map(([what, value, more]) => h("div.figure", quiet(what), h("strong", value), quiet(more)));
}
