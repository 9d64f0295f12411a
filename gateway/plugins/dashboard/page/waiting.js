/** What waits for a person's yes or no, and the figures of today. */

import { acts } from "./acts.js";
import { get } from "./api.js";
import { chip, empty, h, panel, put, quiet, said } from "./dom.js";
import { bytes, dollars, input, share, time, tokens } from "./format.js";
import { markdown } from "./markdown.js";

const NOTHING = "Nothing waits for you. Strangers who write for the first time, new rooms, tool calls and notes that need your yes appear here.";
const KINDS = { pairing: "stranger", room: "room", approval: "tool call", note: "note", link: "account" };

export class Waiting {
  /** `running`: where the turns that run are shown. `counted(number)`: called with the number of what waits. */
  constructor(running, counted) {
    Object.assign(this, { name: "waiting", title: "Waiting", always: true, counted, cards: h("div"), figures: h("div.figures") });
    this.body = [this.cards, panel("Running now", running), this.figures];
  }

  async load() {
    const { items } = await get("/api/waiting");
    this.counted(items.length);
    put(this.cards, items.length ? h("ul.cards", items.map((one) => card(one, () => this.load()))) : h("div.panel", empty(NOTHING)));
  }

  /** Show the figures of today, from `/api/status`. */
  status({ today, agents, store }) {
    const total = (name) => agents.reduce((all, one) => all + one[name], 0);
    const full = store.full_on ? `disk full on ${store.full_on}` : "the disk lasts for years";
    const growth = store.bytes_per_day === null ? "growth is known after a day" : `+${bytes(store.bytes_per_day)} a day; ${full}`;
    const figure = (what, value, more) => h("div.figure", quiet(what), h("strong", value), quiet(more));
    put(
      this.figures,
      figure("spent today", dollars(today.cost_usd), "since midnight UTC"),
      figure("read from the cache", share(today.read_share), `${tokens(today.read_tokens)} tokens`),
      figure("requests to models", today.requests, `${tokens(input(today))} tokens in, ${tokens(today.output_tokens)} out`),
      figure("turns on its own", total("turns_today"), `of ${total("daily_turns")}; ${dollars(total("spent_today_usd"))} of ${dollars(total("daily_cost_usd"))}`),
      figure("store", bytes(store.size_bytes), growth),
    );
  }
}

function card(one, done) {
  const where = said(one.place_title || one.place, { title: one.place });
  // in a call each character counts
  const words = one.kind === "note" ? markdown(one.words) : h(one.kind === "approval" || one.kind === "tool" ? "pre" : "p", said(one.words));
  return h(
    "li.card",
    { key: one.id },
    h(
      "div.top",
      chip(KINDS[one.kind] ?? one.kind, "open"),
      said(one.who, { class: "who" }),
      where.textContent && where.textContent !== one.who ? quiet("in ", where) : null,
      h("span.spring"),
      one.since ? quiet("since ", time(one.since)) : null,
    ),
    h("p", said(one.what)),
    one.words ? h("blockquote", words) : null,
    one.until ? h("p.quiet", "It waits until ", time(one.until), ".") : null,
    acts(...one.actions.map((action) => ({ ...action, done }))),
  );
}
