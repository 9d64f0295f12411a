/** Live list of notifications with their outcomes, newest first; at most `MOST` are kept. */

import { get } from "./api.js";
import { h, placedWhole, roving, show, titleOf } from "./dom.js";
import { channelOf, plural } from "./format.js";
import { Row } from "./row.js";

export const MOST = 500;
const PAGE = 200;
/** Milliseconds between two updates of the DOM. */
const EVERY_MS = 100;
export class Live {
  /** `fields`: the elements `{list, count, pause, channel, conversation, fate, text}`. */
  constructor(fields) {
    Object.assign(this, fields, { rows: new Map(), pending: [], meanwhile: null, paused: false, timer: null, end: false, lost: 0 });
    this.roving = roving(this.list, "summary, button.more");
    for (const one of [this.channel, this.conversation, this.fate]) one.addEventListener("change", () => this.filter());
    this.text.addEventListener("input", () => this.filter());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.text.value = "";
      this.filter();
      this.text.blur();
    });
    this.pause.addEventListener("click", () => this.hold(!this.paused));
    this.more = h(
      "li",
      { class: "foot" },
      h("button", { type: "button", class: "more", tabindex: -1, on: { click: () => this.older() } }, "Show older"),
    );
    this.seen = { channel: new Set(), conversation: new Set(), fate: new Set() };
  }

  /**
   * Load the newest notifications of the log. Return the newest position, or null. Events that come meanwhile are kept:
   * the answer may be older than they are.
   */
  async load() {
    const meanwhile = (this.meanwhile = []);
    const { items: notifications, next } = await get("/api/notifications", { limit: PAGE });
    this.rows.clear();
    this.list.replaceChildren();
    this.pending = meanwhile;
    if (this.meanwhile === meanwhile) this.meanwhile = null;
    this.end = next === null || next === undefined;
    this.insert(notifications.map((note) => new Row(note)));
    this.flush();
    this.settle();
    return this.rows.size ? Math.max(...this.rows.keys()) : null;
  }

  /** Handle a new notification. It is shown within `EVERY_MS`. */
  take(note) {
    for (const kept of [this.pending, this.meanwhile]) {
      if (!kept) continue;
      kept.push(note);
      if (kept.length > 4 * MOST) kept.splice(0, kept.length - 3 * MOST);
    }
    if (this.paused) this.counted();
    else this.timer ??= setTimeout(() => requestAnimationFrame(() => this.flush()), EVERY_MS);
  }

  flush() {
    this.timer = null;
    if (this.paused) return;
    const pending = this.pending;
    this.pending = [];
    const fresh = new Map();
    for (const note of pending) if (!this.rows.has(note.seq)) fresh.set(note.seq, note);
    this.insert([...fresh.values()].slice(-MOST).map((note) => new Row(note)));
    this.settle();
  }

  /** Read the outcomes of the newest notifications again: a turn that ends decides about those before it. */
  async outcomes() {
    const { items } = await get("/api/notifications", { limit: PAGE });
    for (const { seq, fate, rule } of items) {
      const row = this.rows.get(seq);
      if (!row || row.note.fate === fate) continue;
      Object.assign(row.note, { fate, rule });
      row.decided();
      row.element.hidden = !this.fits(row.note);
      this.learn("fate", fate);
    }
    this.settle();
  }

  /** Return the rows in the order of the log, newest first. */
  insert(rows) {
    if (!rows.length) return;
    const sorted = rows.sort((a, b) => b.note.seq - a.note.seq);
    const newest = this.rows.size ? Math.max(...this.rows.keys()) : 0;
    for (const row of sorted) {
      this.rows.set(row.note.seq, row);
      row.element.hidden = !this.fits(row.note);
      this.learn("channel", channelOf(row.note));
      this.learn("conversation", row.note.conversation);
      this.learn("fate", row.note.fate);
    }
    const elements = sorted.map((row) => row.element);
    if (sorted.at(-1).note.seq > newest) this.list.prepend(...elements);
    else this.list.replaceChildren(...this.ordered().map((row) => row.element));
    this.cap();
  }

  ordered = () => [...this.rows.values()].sort((a, b) => b.note.seq - a.note.seq);

  cap() {
    if (this.rows.size <= MOST) return;
    for (const row of this.ordered().slice(MOST)) {
      row.element.remove();
      this.rows.delete(row.note.seq);
    }
    this.end = false;
  }

  settle() {
    const shown = [...this.rows.values()].filter((row) => !row.element.hidden).length;
    if (!this.rows.size)
      show(
        this.list,
        h(
          "li",
          { class: "empty" },
          "Nothing has arrived yet. Messages and events appear here with their outcome and the rule that decided.",
        ),
      );
    else {
      this.list.querySelector(":scope > .empty")?.remove();
      if (!shown)
        this.list.prepend(
          h("li", { class: "empty" }, "Nothing matches the filter. New events that match appear here."),
        );
      if (this.end) this.more.remove();
      else this.list.append(this.more);
    }
    this.counted(shown);
    this.roving.settle();
  }

  counted(shown = null) {
    this.shown = shown ?? this.shown ?? 0;
    const words = this.shown === this.rows.size ? String(this.rows.size) : `${this.shown} of ${this.rows.size}`;
    this.count.textContent = this.paused ? `${words} · paused, ${this.pending.length} new` : words;
  }

  hold(paused) {
    this.paused = paused;
    this.pause.setAttribute("aria-pressed", String(paused));
    this.pause.textContent = paused ? "Go on" : "Pause";
    if (paused) this.counted();
    else this.flush();
  }

  /** Update the choices of the filters. */
  learn(name, value) {
    if (!value || this.seen[name].has(value) || this.seen[name].size >= MOST) return;
    this.seen[name].add(value);
    const option = h("option", { value }, name === "conversation" ? placedWhole(value) : value);
    const field = this[name];
    const after = [...field.options].slice(1).find((one) => one.value.localeCompare(value) > 0);
    field.insertBefore(option, after ?? null);
  }

  fits(note) {
    const words = this.text.value.trim().toLowerCase();
    return (
      (!this.channel.value || channelOf(note) === this.channel.value) &&
      (!this.conversation.value || note.conversation === this.conversation.value) &&
      (!this.fate.value || note.fate === this.fate.value) &&
      (!words || `${note.text}\n${note.who}\n${titleOf(note.conversation) ?? ""}`.toLowerCase().includes(words))
    );
  }

  filter() {
    for (const row of this.rows.values()) row.element.hidden = !this.fits(row.note);
    this.settle();
  }

  /** Load older notifications. The stream is paused meanwhile, because new ones would push them out again. */
  async older() {
    const before = Math.min(...this.rows.keys());
    const { items: notifications, next } = await get("/api/notifications", {
      before,
      limit: 100,
      conversation: this.conversation.value,
    });
    if (this.rows.size + notifications.length > MOST) {
      this.hold(true);
      for (const row of this.ordered().slice(0, this.rows.size + notifications.length - MOST)) {
        row.element.remove();
        this.rows.delete(row.note.seq);
      }
    }
    this.end = next === null || next === undefined;
    this.insert(notifications.map((note) => new Row(note)));
    this.settle();
    if (!notifications.length) this.count.textContent = `${this.count.textContent} · ${plural(0, "older one")}`;
  }
}
