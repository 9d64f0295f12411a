/** One row of the live list, which can be expanded. */

import { get } from "./api.js";
import { h, placed, placedWhole, said, show } from "./dom.js";
import { channelOf, time } from "./format.js";

const WORDS = ["ambient", "low", "normal", "urgent"];
const DONE = new Set(["answered", "answered elsewhere", "command", "taken up", "handled"]);
const OPEN = new Set(["waiting", "overheard", "looked at", "interrupted"]);
const BAD = new Set(["refused", "failed"]);

/** Style of a fate: `done`, `open`, `bad`, or none. */
export const tone = (fate) => (DONE.has(fate) ? "done" : OPEN.has(fate) ? "open" : BAD.has(fate) ? "bad" : "calm");
export const chip = (fate) => h("span", { class: `chip ${tone(fate)}` }, fate || "…");

const urgency = (value) => WORDS[value] ?? String(value ?? "");

/** Characters to which an event cuts a text. */
const EVENT_CHARS = 4_000;

export class Row {
  constructor(note) {
    this.note = note;
    this.fate = h("span", { class: "fate" });
    this.body = null;
    const { at, conversation, who, text, urgency: how } = note;
    const head = h(
      "summary",
      { class: "line", tabindex: -1 },
      time(at),
      this.fate,
      conversation ? placed(conversation, { class: "place" }) : said(channelOf(note), { class: "place" }),
      said(who, { class: "who" }),
      said(text?.length > 400 ? `${text.slice(0, 400)}…` : text, { class: "text" }),
      h("span", { class: `urgency u-${urgency(how)}`, title: `urgency: ${urgency(how)}` }, urgency(how)),
    );
    this.details = h("details", { on: { toggle: () => this.unfold() } }, head);
    this.element = h("li", {}, this.details);
    this.decided();
  }

  /** Load the whole text from the log; an event has only its beginning. */
  async whole() {
    if (!(this.note.text?.length >= EVENT_CHARS) || this.asked) return;
    this.asked = true;
    const { items: notifications } = await get("/api/notifications", { after: this.note.seq - 1, limit: 1 }).catch(() => ({
      items: [],
    }));
    if (notifications[0]?.seq !== this.note.seq || notifications[0].text === this.note.text) return;
    this.note.text = notifications[0].text;
    this.unfold();
  }

  /** Set the fate, once it is known or has changed. */
  decided() {
    show(this.fate, chip(this.note.fate));
    this.fate.title = this.note.rule ? `rule: ${this.note.rule}` : "";
    if (this.body) this.unfold();
  }

  unfold() {
    if (!this.details.open) return;
    this.whole();
    const { seq, at, type, kind, conversation, text, fate, rule, who, urgency: how } = this.note;
    const facts = [
      ["rule", rule],
      ["fate", fate],
      ["type", type],
      ["kind", kind],
      ["urgency", urgency(how)],
      ["sender", who],
      ["conversation", conversation && placedWhole(conversation)],
      ["entry", seq],
    ];
    this.body?.remove();
    this.body = h(
      "div",
      { class: "unfolded" },
      h("pre", {}, said(text)),
      h(
        "dl",
        {},
        facts
          .filter(([, value]) => value !== "" && value !== null && value !== undefined)
          .map(([name, value]) => [h("dt", {}, name), h("dd", {}, said(value))]),
        h("dt", {}, "at"),
        h("dd", {}, time(at, new Date(at).toLocaleString())),
      ),
    );
    this.details.append(this.body);
  }
}
