/** The lists of the log: notifications as they come in, what a search finds, turns, acts of administrators; warnings. */

import { get } from "./api.js";
import { chip, find, h, placed, put, quiet, said, select, show } from "./dom.js";
import { dollars, input, plural, time, tokens, took } from "./format.js";
import { fateChip, legend, urgency } from "./legend.js";
import { Log } from "./rows.js";
import { details, state } from "./tables.js";

/** Characters to which an event cuts a text. */
const EVENT_CHARS = 4_000;

const at = ["at", "at", (one) => time(one.at)];

/** Return the channel of a notification; one without a conversation has a dotted type: the channel, then the kind. */
const channelOf = ({ conversation, type, kind }) => (conversation ? conversation.split("/", 1)[0] : type.split(`.${kind}`, 1)[0]);

const place = ["place", "place", (one) => (one.conversation ? placed(one) : said(channelOf(one)))];
const who = ["who", "who", (one) => said(one.who)];
const text = ["text", "text", (one) => said(one.text?.slice(0, 400))];

/** Return what a notification says. An event has only the beginning of a text, so a long one is read from the log. */
function whole(one) {
  const nodes = details({ ...one, urgency: one.urgency === undefined ? null : urgency(one.urgency) });
  if (one.text?.length >= EVENT_CHARS)
    get("/api/notifications", { after: one.seq - 1, limit: 1 })
      .then(({ items: [found] }) => found?.seq === one.seq && show(nodes[0], said(found.text)))
      .catch(() => {});
  return nodes;
}

/** Notifications with their outcomes, as they come in. */
export class Live extends Log {
  constructor() {
    super("/api/notifications", {
      name: "live",
      title: "Live stream",
      none: "Nothing has arrived yet. Messages and events appear here with their outcome and the rule that decided.",
      columns: [at, ["fate", "state", (one) => fateChip(one.fate)], place, who, text, ["urgency", "how", (one) => urgency(one.urgency)]],
      details: whole,
    });
    this.filters = [select("Channel"), select("Fate"), find("Text, sender or conversation")];
    for (const one of this.filters) one.oninput = () => this.draw();
    this.tools = quiet();
    this.body = [h("div.panel", h("div.filters", this.filters), this.rows.root), legend()];
  }

  draw() {
    const all = this.sorted;
    const shown = all.filter((one) => this.fits(one));
    this.rows.set(shown, all.length ? "Nothing matches the filter. New events that match appear here." : this.none);
    this.choices(0, "all channels", all.map(channelOf));
    this.choices(1, "all fates", all.map((one) => one.fate));
    this.tools.textContent = shown.length < all.length ? `${shown.length} of ${all.length}` : all.length;
  }

  /** Load older entries, unless a filter hides those that are loaded. */
  async older() {
    if (this.rows.items.length === this.entries.size) await super.older();
  }

  fits(note) {
    const [channel, fate, text] = this.filters.map((one) => one.value);
    const words = text.trim().toLowerCase();
    return (
      (!channel || channelOf(note) === channel) &&
      (!fate || note.fate === fate) &&
      (!words || `${note.text}\n${note.who}\n${note.conversation}\n${note.title}`.toLowerCase().includes(words))
    );
  }

  choices(index, all, values) {
    const found = [...new Set(values)].sort();
    put(this.filters[index], h("option", { value: "" }, all), found.map((value) => h("option", { value, key: value }, value)));
  }
}

export class Search extends Log {
  load = () => (this.query.text ? super.load() : null);

  constructor() {
    super("/api/search", {
      name: "search",
      title: "Search",
      none: "Write words that you remember; all messages since the beginning are searched.",
      columns: [at, ["kind", "state", (one) => chip(one.kind)], place, who, text],
      details: whole,
    });
    const [field, count, start] = [find("Words in any message since the beginning"), h("span.quiet", { role: "status" }), this.none];
    const onsubmit = async (event) => {
      event.preventDefault();
      const asked = field.value.trim();
      Object.assign(this, { query: { text: asked }, none: asked ? "Nothing was found. Fewer words find more." : start, next: null });
      this.entries.clear();
      try {
        if (asked) await this.load();
      } catch (error) {
        this.none = error.message;
      }
      this.draw();
      count.textContent = asked && `${plural(this.entries.size, "entry", "entries")}${this.next ? " and more" : ""}`;
    };
    this.tools = count;
    this.body = h("div.panel", h("form.filters", { role: "search", onsubmit }, field, h("button.strong", "Search")), this.rows.root);
    this.draw();
  }
}

/** Format as `bash ×3, remind`. */
function folded(names) {
  const counts = Map.groupBy(names, (name) => name);
  return [...counts].map(([name, { length }]) => (length > 1 ? `${name} ×${length}` : name)).join(", ");
}

export const turns = new Log("/api/turns", {
  name: "turns",
  title: "Turns",
  hint: "Each time that a model was used.",
  none: "There were no turns yet. Each turn appears here with its cause, outcome and cost.",
  columns: [
    at,
    ["outcome", "state", (one) => state(one.outcome)],
    ["conversation", "place", place[2]],
    ["cause", "cause", (one) => one.cause],
    ["tools", "text", (one) => said(folded(one.tools) || "–")],
    ["input", "num", (one) => tokens(input(one))],
    ["output", "num", (one) => tokens(one.output_tokens)],
    ["cost", "num", (one) => dollars(one.cost_usd)],
    ["took", "num", (one) => took(one.seconds)],
  ],
  details: ({ input_tokens, read_tokens, written_tokens, seconds, state: _, ...more }) =>
    details({ ...more, took_s: seconds, "read from the cache_tokens": read_tokens, "written to it_tokens": written_tokens, "neither_tokens": input_tokens }),
});

export const audit = new Log("/api/audit", {
  name: "audit",
  title: "Audit",
  hint: "Who did what with the gateway.",
  none: "Nobody has used an administrative command yet. Such commands appear here with the person and the result.",
  columns: [
    at,
    ["who", "who", (one) => said(one.actor)],
    ["command", "mono place", (one) => said(`${one.command} ${one.arguments}`)],
    ["done", "state", (one) => state(one.ok ? "done" : "not done")],
    ["result", "text", (one) => said(one.result || "–")],
  ],
  details,
});

/** What the gateway and this page warned of: `{at, level, logger, message}`, with a `seq` that counts them. */
export const warnings = new Log(null, {
  name: "warnings",
  title: "Warnings",
  hint: "Since this page was opened.",
  none: "No warning since this page was opened. New warnings appear here.",
  columns: [
    at,
    ["level", "state", (one) => state(one.level)],
    ["from", "mono place", (one) => said(one.logger)],
    ["message", "text", (one) => said(one.message)],
  ],
  details,
});
