/** Panels that are tables: turns, audit, warnings. */

import { get } from "./api.js";
import { empty, h, placed, said, show } from "./dom.js";
import { dollars, input, span, time, tokens } from "./format.js";

const MOST_WARNINGS = 200;

/** `columns`: `[heading, class, cell of a row]`. The classes fold a row to two lines on narrow screens. */
export function table(label, columns, rows) {
  return h(
    "table",
    { "aria-label": label },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          { class: row.tone ?? null },
          columns.map(([name, kind, cell]) => h("td", { class: kind, "data-name": name }, cell(row))),
        ),
      ),
    ),
  );
}

/** Keep the scroll position of a panel. */
export function put(root, ...children) {
  const top = root.scrollTop;
  show(root, ...children);
  root.scrollTop = top;
}

const OUTCOMES = { replied: "done", failed: "bad", interrupted: "open" };

export class Turns {
  constructor(root) {
    this.root = root;
  }

  async refresh() {
    const { items: turns } = await get("/api/turns", { limit: 100 });
    if (!turns.length)
      return show(
        this.root,
        empty("There were no turns yet. Each turn appears here with its cause, outcome and cost."),
      );
    put(
      this.root,
      table(
        "Turns",
        [
          ["at", "at", (one) => time(one.at)],
          ["conversation", "short", (one) => placed(one.conversation)],
          ["cause", "short", (one) => one.cause],
          ["outcome", "short", (one) => h("span", { class: `chip ${OUTCOMES[one.outcome] ?? "calm"}` }, one.outcome)],
          ["tools", "wide", (one) => (one.tools.length ? said(folded(one.tools)) : "–")],
          ["requests", "num", (one) => String(one.requests)],
          ["input", "num", (one) => tokens(input(one))],
          ["read", "num", (one) => tokens(one.read_tokens)],
          ["written", "num", (one) => tokens(one.written_tokens)],
          ["output", "num", (one) => tokens(one.output_tokens)],
          ["cost", "num", (one) => dollars(one.cost_usd)],
          [
            "took",
            "num",
            (one) =>
              one.seconds === null ? "–" : one.seconds < 10 ? `${one.seconds.toFixed(1)} s` : span(one.seconds),
          ],
          ["model", "mono short", (one) => said(one.model || "–")],
        ],
        turns,
      ),
    );
  }
}

/** Format as `bash ×3, remind`. */
function folded(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", ");
}

export class Audit {
  constructor(root) {
    this.root = root;
  }

  async refresh() {
    const { items: audit } = await get("/api/audit", { limit: 100 });
    if (!audit.length)
      return show(
        this.root,
        empty("Nobody has used an administrative command yet. Such commands appear here."),
      );
    put(
      this.root,
      table(
        "Audit",
        [
          ["at", "at", (one) => time(one.at)],
          ["who", "mono", (one) => said(one.actor)],
          ["command", "mono", (one) => said([one.command, one.arguments].filter(Boolean).join(" "))],
          ["where", "short", (one) => (one.place ? placed(one.place) : "–")],
          [
            "result",
            "wide",
            (one) => [one.ok ? null : h("span", { class: "chip bad" }, "not done"), " ", said(one.result || "–")],
          ],
        ],
        audit,
      ),
    );
  }
}

export class Warnings {
  constructor(root) {
    Object.assign(this, { root, all: [], timer: null });
    this.paint();
  }

  /** Add a warning `{at, level, logger, message}`. */
  take(one) {
    this.all.unshift(one);
    this.all.length = Math.min(this.all.length, MOST_WARNINGS);
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.paint();
    }, 300);
  }

  paint() {
    if (!this.all.length)
      return show(this.root, empty("No warning since this page was opened. New warnings appear here."));
    put(
      this.root,
      table(
        "Warnings",
        [
          ["at", "at", (one) => time(one.at)],
          [
            "level",
            "short",
            (one) =>
              h(
                "span",
                { class: `chip ${/error|critical/i.test(one.level) ? "bad" : "open"}` },
                String(one.level).toLowerCase(),
              ),
          ],
          ["from", "mono short", (one) => said(one.logger)],
          ["message", "wide", (one) => said(one.message)],
        ],
        this.all,
      ),
    );
  }
}
