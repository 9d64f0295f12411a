/** What waits for a person's yes or no. */

import { buttons, resultOf } from "./acts.js";
import { get } from "./api.js";
import { empty, h, placed, put, said } from "./dom.js";
import { since, time } from "./format.js";
import { markdown } from "./markdown.js";

const KINDS = { pairing: "stranger", room: "room", approval: "tool call", note: "note", link: "account" };
/** Kinds whose words are code: each character counts. */
const CODE = ["approval", "tool"];

export class Waiting {
  /** `counted(number)`: called with the number of what waits. */
  constructor(root, counted) {
    Object.assign(this, { root, counted, items: [], decided: new Map() });
  }

  /** Load the list. What was decided here stays, with the result, until `forget`. */
  async refresh() {
    this.items = (await get("/api/waiting")).items;
    this.counted(this.items.length);
    this.paint();
  }

  forget() {
    this.decided.clear();
  }

  paint() {
    const open = new Set(this.items.map((one) => one.id));
    const shown = [...[...this.decided.values()].filter((one) => !open.has(one.id)), ...this.items];
    if (!shown.length)
      return put(
        this.root,
        h(
          "div.calm-state",
          h("span", { class: "tick", "aria-hidden": "true" }, "✓"),
          h("p", h("strong", "Nothing waits for you.")),
          empty("Strangers who write for the first time, new rooms, tool calls and notes that need your yes appear here."),
        ),
      );
    put(this.root, h("ul.cards", shown.map((one) => this.card(one, open.has(one.id)))));
  }

  card(one, open) {
    const acts = one.actions.map((act) => ({
      label: act.label,
      words: act.words,
      about: { place: act.place, agent: act.agent },
      role: act.role,
      style: { yes: "strong", no: "danger" }[act.style] ?? "",
      done: (result) => {
        if (result.ok) this.decided.set(one.id, one);
        this.refresh().catch(() => {});
      },
    }));
    const [key, where] = [`waiting ${one.id}`, one.place_title || one.place];
    return h(
      "li",
      { class: open ? "card" : "card decided", "data-id": one.id },
      h(
        "div.top",
        h("span.chip.open", KINDS[one.kind] ?? one.kind),
        where && where !== one.who ? h("span.quiet", "in ", one.place ? placed(one.place) : said(where)) : null,
        h("span.spring"),
        one.since ? h("span.quiet", time(one.since, `${since(one.since)} ago`)) : null,
      ),
      h("p.what", one.who ? [said(one.who, { class: "who" }), " "] : null, said(one.what)),
      one.words ? h("blockquote", one.kind === "note" ? markdown(one.words) : h(CODE.includes(one.kind) ? "pre" : "p", said(one.words))) : null,
      one.until && open ? h("p.quiet", "It waits until ", time(one.until), ".") : null,
      open ? buttons(key, acts) : resultOf(key),
    );
  }
}
