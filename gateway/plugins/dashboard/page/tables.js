/** Tables, and the lists of turns, acts of administrators, and warnings. */

import { get } from "./api.js";
import { h, placed, placedWhole, said } from "./dom.js";
import { dollars, input, span, time, tokens } from "./format.js";
import { Rows } from "./rows.js";

const MOST_WARNINGS = 1_000;
const PAGE = 200;

/** `columns`: `[heading, class, cell of a row]`. The classes fold a row to two lines on narrow screens. */
export function table(label, columns, rows) {
  const heads = columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  const row = (one) =>
    h("tr", { class: one.tone ?? null }, columns.map(([name, kind, cell]) => h("td", { class: kind, "data-name": name }, cell(one))));
  return h("table", { "aria-label": label }, h("thead", h("tr", heads)), h("tbody", rows.map(row)));
}

/** Return a description list of `[name, value]`; those without a value are left out. */
export const facts = (pairs) =>
  h(
    "dl.facts",
    pairs
      .filter(([, value]) => (value ?? "") !== "")
      .map(([name, value]) => [h("dt", name), h("dd", value instanceof Node ? value : said(value))]),
  );

const both = (iso) => time(iso, new Date(iso).toLocaleString());

/** A list of the log, the newest on top, which goes back as far as it is scrolled. */
class Log {
  constructor(path, root, options) {
    Object.assign(this, { path, items: [], next: null });
    this.rows = new Rows(root, { ...options, more: () => this.older() });
  }

  async refresh() {
    const { items, next } = await get(this.path, { limit: PAGE });
    const oldest = items.at(-1)?.seq ?? 0;
    const kept = this.items.filter((one) => one.seq < oldest);
    if (!kept.length) this.next = next;
    const known = new Map(this.items.map((one) => [one.seq, one]));
    this.items = [...items.map((one) => known.get(one.seq) ?? one), ...kept];
    this.rows.set(this.items);
  }

  async older() {
    if (!this.next) return false;
    const { items, next } = await get(this.path, { limit: PAGE, before: this.next });
    Object.assign(this, { items: [...this.items, ...items], next });
    this.rows.set(this.items);
    return items.length > 0;
  }
}

const OUTCOMES = { replied: "done", failed: "bad", interrupted: "open" };
const took = ({ seconds: s }) => (s === null ? "–" : s < 10 ? `${s.toFixed(1)} s` : span(s));

export class Turns extends Log {
  constructor(root) {
    super("/api/turns", root, {
      label: "Turns, newest first",
      none: "There were no turns yet. Each turn appears here with its cause, outcome and cost.",
      columns: [
        ["at", "at", (one) => time(one.at)],
        ["outcome", "state", (one) => h("span", { class: `chip ${OUTCOMES[one.outcome] ?? "calm"}` }, one.outcome)],
        ["conversation", "place", (one) => placed(one.conversation)],
        ["cause", "who cause", (one) => one.cause],
        ["tools", "text", (one) => said(folded(one.tools) || "–")],
        ["input", "num", (one) => tokens(input(one))],
        ["output", "num", (one) => tokens(one.output_tokens)],
        ["cost", "num", (one) => dollars(one.cost_usd)],
        ["took", "num", took],
      ],
      details: (one) =>
        facts([
          ["ended", both(one.at)],
          ["conversation", placedWhole(one.conversation)],
          ["agent", one.agent],
          ["cause", one.autonomous ? `${one.cause} (on its own)` : one.cause],
          ["tools", folded(one.tools)],
          ["model", one.model],
          ["requests", one.requests],
          ["input", `${input(one)} tokens: ${one.read_tokens} read from the cache, ${one.written_tokens} written to it`],
          ["output", `${one.output_tokens} tokens`],
          ["cost", dollars(one.cost_usd)],
          ["entry", one.seq],
        ]),
    });
  }
}

/** Format as `bash ×3, remind`. */
function folded(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", ");
}

export class Audit extends Log {
  constructor(root) {
    super("/api/audit", root, {
      label: "Acts of administrators, newest first",
      none: "Nobody has used an administrative command yet. Such commands appear here with the person and the result.",
      columns: [
        ["at", "at", (one) => time(one.at)],
        ["who", "who", (one) => said(one.actor)],
        ["command", "mono place", (one) => said(`${one.command} ${one.arguments}`.trim())],
        ["done", "state", (one) => h("span", { class: one.ok ? "chip done" : "chip bad" }, one.ok ? "done" : "not done")],
        ["result", "text", (one) => said(one.result || "–")],
      ],
      details: (one) => [
        h("pre", said(one.result)),
        facts([
          ["at", both(one.at)],
          ["who", one.actor],
          ["command", one.command],
          ["arguments", one.arguments],
          ["where", one.place ? placedWhole(one.place) : "command line or API"],
          ["entry", one.seq],
        ]),
      ],
    });
  }
}

export class Warnings {
  constructor(root) {
    Object.assign(this, { all: [], seq: 0, timer: null });
    const tone = (level) => (/error|critical/i.test(level) ? "bad" : "open");
    this.rows = new Rows(root, {
      label: "Warnings, newest first",
      none: "No warning since this page was opened. New warnings appear here.",
      columns: [
        ["at", "at", (one) => time(one.at)],
        ["level", "state", (one) => h("span", { class: `chip ${tone(one.level)}` }, String(one.level).toLowerCase())],
        ["from", "mono place", (one) => said(one.logger)],
        ["message", "text", (one) => said(one.message)],
      ],
      details: (one) => h("pre", said(one.message)),
    });
    this.rows.set([]);
  }

  /** Add a warning `{at, level, logger, message}`. */
  take(one) {
    this.all.unshift({ ...one, seq: (this.seq += 1) });
    this.all.length = Math.min(this.all.length, MOST_WARNINGS);
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.rows.set([...this.all]);
    }, 300);
  }
}
