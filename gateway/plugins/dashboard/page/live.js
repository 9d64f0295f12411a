/** Live list of notifications with their outcomes, newest first; at most `MOST` are kept. */

import { get } from "./api.js";
import { h, placed, placedWhole, said, titleOf } from "./dom.js";
import { channelOf, time } from "./format.js";
import { chip, urgency } from "./legend.js";
import { Rows } from "./rows.js";
import { facts } from "./tables.js";
import { address } from "./views.js";

export const MOST = 10_000;
const PAGE = 200;
/** Milliseconds between two updates of the DOM. */
const EVERY_MS = 100;
/** Characters to which an event cuts a text. */
const EVENT_CHARS = 4_000;

/** Columns of a list of notifications. */
export const COLUMNS = [
  ["at", "at", ({ at }) => time(at)],
  ["fate", "state", (one) => chip(one.fate)],
  ["place", "place", (one) => (one.conversation ? placed(one.conversation) : said(channelOf(one)))],
  ["who", "who", ({ who }) => said(who)],
  ["text", "text", ({ text }) => said(text?.length > 400 ? `${text.slice(0, 400)}…` : text)],
  ["urgency", "how", (one) => (one.urgency === undefined ? "" : urgency(one.urgency))],
];

/** Return what an opened notification shows. */
export function unfolded(one) {
  const words = h("pre", said(one.text));
  if (one.text?.length >= EVENT_CHARS)
    get("/api/notifications", { after: one.seq - 1, limit: 1 }) // an event has only the beginning of a text
      .then(({ items: [found] }) => found?.seq === one.seq && words.replaceChildren(said(found.text)))
      .catch(() => {});
  return [
    words,
    facts([
      ["fate", one.fate],
      ["rule that decided", one.rule],
      ["type", one.type],
      ["kind", one.kind],
      ["sender", one.who],
      ["conversation", one.conversation && h("a", { href: address("conversations", one.conversation) }, said(placedWhole(one.conversation)))],
      ["entry", one.seq],
      ["at", time(one.at, new Date(one.at).toLocaleString())],
    ]),
  ];
}

export class Live {
  /** `fields`: the elements `{list, count, pause, channel, conversation, fate, text}`. */
  constructor(fields) {
    Object.assign(this, fields, { notes: new Map(), pending: [], meanwhile: null, paused: false, timer: null, end: false });
    this.rows = new Rows(this.list, {
      label: "Notifications, newest first",
      none: "Nothing has arrived yet. Messages and events appear here with their outcome and the rule that decided.",
      columns: COLUMNS,
      details: unfolded,
      more: () => this.older(),
    });
    for (const one of [this.channel, this.conversation, this.fate]) one.addEventListener("change", () => this.settle());
    this.text.addEventListener("input", () => this.settle());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.text.value = "";
      this.settle();
      this.text.blur();
    });
    this.pause.addEventListener("click", () => this.hold(!this.paused));
    this.seen = { channel: new Set(), conversation: new Set(), fate: new Set() };
  }

  /**
   * Load the newest notifications of the log. Return the newest position, or null. Events that come meanwhile are kept:
   * the answer may be older than they are.
   */
  async load() {
    const meanwhile = (this.meanwhile = []);
    const { items, next } = await get("/api/notifications", { limit: PAGE });
    this.notes.clear();
    this.pending = meanwhile;
    if (this.meanwhile === meanwhile) this.meanwhile = null;
    this.end = (next ?? null) === null;
    this.insert(items);
    this.flush();
    this.settle();
    return this.notes.size ? Math.max(...this.notes.keys()) : null;
  }

  /** Handle a new notification. It is shown within `EVERY_MS`. */
  take(note) {
    for (const kept of [this.pending, this.meanwhile]) {
      if (!kept) continue;
      kept.push(note);
      if (kept.length > 2 * MOST) kept.splice(0, MOST);
    }
    if (this.paused) this.counted();
    else this.timer ??= setTimeout(() => requestAnimationFrame(() => this.flush()), EVERY_MS);
  }

  flush() {
    this.timer = null;
    if (this.paused) return;
    const pending = this.pending;
    this.pending = [];
    this.insert(pending.filter((note) => !this.notes.has(note.seq)));
    this.settle();
  }

  /** Read the outcomes of the newest notifications again: a turn that ends decides about those before it. */
  async outcomes() {
    const { items } = await get("/api/notifications", { limit: PAGE });
    for (const { seq, fate, rule } of items) {
      const note = this.notes.get(seq);
      if (!note || note.fate === fate) continue;
      this.notes.set(seq, { ...note, fate, rule });
      this.learn("fate", fate);
    }
    this.settle();
  }

  insert(notes) {
    for (const note of notes) {
      this.notes.set(note.seq, note);
      this.learn("channel", channelOf(note));
      this.learn("conversation", note.conversation);
      this.learn("fate", note.fate);
    }
    if (this.notes.size <= MOST) return;
    for (const { seq } of this.ordered().slice(MOST)) this.notes.delete(seq);
    this.end = true; // older ones would be dropped again
  }

  ordered = () => [...this.notes.values()].sort((a, b) => b.seq - a.seq);

  settle() {
    const shown = this.fitting();
    const none = this.notes.size ? "Nothing matches the filter. New events that match appear here." : undefined;
    this.rows.set(shown, none);
    this.counted(shown.length);
  }

  counted(shown = null) {
    this.shown = shown ?? this.shown ?? 0;
    const words = this.shown === this.notes.size ? String(this.notes.size) : `${this.shown} of ${this.notes.size}`;
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
    if (!value || this.seen[name].has(value) || this.seen[name].size >= 500) return;
    this.seen[name].add(value);
    const option = h("option", { value }, name === "conversation" ? placedWhole(value) : value);
    const field = this[name];
    const after = [...field.options].slice(1).find((one) => one.value.localeCompare(value) > 0);
    field.insertBefore(option, after ?? null);
  }

  /** Return the notifications that fit the filter, newest first. */
  fitting() {
    const [channel, conversation, fate] = [this.channel.value, this.conversation.value, this.fate.value];
    const words = this.text.value.trim().toLowerCase();
    const fits = (note) =>
      (!channel || channelOf(note) === channel) &&
      (!conversation || note.conversation === conversation) &&
      (!fate || note.fate === fate) &&
      (!words || `${note.text}\n${note.who}\n${titleOf(note.conversation) ?? ""}`.toLowerCase().includes(words));
    return channel || conversation || fate || words ? this.ordered().filter(fits) : this.ordered();
  }

  /** Load older notifications, unless a filter is set. Return whether there were any. */
  async older() {
    if (this.end || !this.notes.size || this.shown !== this.notes.size) return false;
    const before = Math.min(...this.notes.keys());
    const { items, next } = await get("/api/notifications", { before, limit: PAGE });
    this.end = (next ?? null) === null;
    this.insert(items);
    this.settle();
    return items.length > 0;
  }
}
