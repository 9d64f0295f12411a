/** Usage and costs of models: today's totals, both plots, and sums by day, room, person and model. */

import { get } from "./api.js";
import { empty, h, put, said, show, titleOf } from "./dom.js";
import { bytes, dollars, input, now as clock, share, tokens } from "./format.js";
import { Plot } from "./plot.js";
import { table } from "./tables.js";

const HOUR = 3_600_000;
/** Hours up to which the gateway returns hours; beyond, days. */
const HOURLY_MOST = 72;

/** Rows `[what, value, more]` from `/api/status`. */
function figures({ today, agents, store }) {
  const sum = (name) => agents.reduce((all, one) => all + one[name], 0);
  const full = store.full_on ? `disk full on ${store.full_on}` : "the disk lasts for years";
  return [
    ["spent today", dollars(today.cost_usd), "since midnight UTC"],
    ["read from the cache", share(today.read_share), `${tokens(today.read_tokens)} tokens`],
    ["requests to models", String(today.requests), `${tokens(input(today))} tokens in, ${tokens(today.output_tokens)} out`],
    ["turns on its own", `${sum("turns_today")}`, `of ${sum("daily_turns")} a day`],
    ["cost of its own turns", dollars(sum("spent_today_usd")), `of ${dollars(sum("daily_cost_usd"))}`],
    store.bytes_per_day === null
      ? ["store", bytes(store.size_bytes), "growth is known after a day"]
      : ["store", bytes(store.size_bytes), `+${bytes(store.bytes_per_day)} a day; ${full}`],
  ];
}

/** Row of totals. */
export function today(root, status) {
  const figure = ([what, value, more]) =>
    h("div.figure", h("span.what", what), h("span.value", value), h("span.more", more));
  show(root, figures(status).map(figure));
}

/** Convert the answer of `/api/cache` to the data of a plot. */
export function series(answer, hours, value, cells, now = clock()) {
  const width = hours > HOURLY_MOST ? 24 * HOUR : HOUR;
  const first = Math.min(...answer.buckets.map((one) => Date.parse(one.at)), now);
  const from = first + Math.ceil((now - hours * HOUR - first) / width) * width - width;
  const times = [];
  for (let at = from; at <= now; at += width) times.push(at);
  const by = new Map(answer.buckets.map((one) => [`${one.key}\n${Date.parse(one.at)}`, one]));
  // sorted by name, so that each keeps its colour
  const named = [...answer.totals]
    .sort((one, other) => one.key.localeCompare(other.key))
    .map((total) => ({ name: total.key, cells: cells(total), values: times.map((at) => value(by.get(`${total.key}\n${at}`))) }));
  return { from, to: times.at(-1) + width, width, times, series: named };
}

export class Usage {
  /** `hours`, `by`: fields that choose the span, and what is summed in the table `sums`. */
  constructor({ share: shareRoot, cost, sums, hours, by }) {
    Object.assign(this, { roots: [shareRoot, cost], sums, hours, by, plots: null });
    for (const one of [hours, by]) one.addEventListener("change", () => this.refresh());
  }

  async refresh() {
    const [hours, by] = [Number(this.hours.value), this.by.value];
    const [answer, { items }] = await Promise.all([get("/api/cache", { hours, by: "channel" }), get("/api/spending", { hours, by })]);
    if (hours !== Number(this.hours.value) || by !== this.by.value) return; // another choice was made meanwhile
    this.table(items);
    if (!answer.totals.length) {
      this.plots = null;
      for (const root of this.roots) show(root, empty("There were no requests to a model in this time."));
      return;
    }
    this.plots ??= [
      new Plot(this.roots[0], { kind: "line", top: 1, format: share, label: "Share of input tokens that was read from the cache, per channel", columns: ["share", "read", "input"] }),
      new Plot(this.roots[1], { kind: "bars", format: dollars, label: "Cost per channel", columns: ["cost", "written", "output"] }),
    ];
    const shares = (one) => [share(one.read_share), tokens(one.read_tokens), tokens(input(one))];
    const costs = (one) => [dollars(one.cost_usd), tokens(one.written_tokens), tokens(one.output_tokens)];
    this.plots[0].draw(series(answer, hours, (one) => one?.read_share ?? null, shares));
    this.plots[1].draw(series(answer, hours, (one) => one?.cost_usd ?? null, costs));
  }

  table(found) {
    if (!found.length) return show(this.sums, empty("There were no requests to a model in this time."));
    const most = Math.max(...found.map((one) => one.cost_usd));
    const part = (one) => h("span", { class: "meter", "aria-hidden": "true", style: { "--part": most ? one.cost_usd / most : 0 } });
    const columns = [
      [this.by.selectedOptions[0].text, "wide", (one) => said(one.label || titleOf(one.key) || "–", { title: one.key })],
      ["share of cost", "share", part],
      ["cost", "num", (one) => dollars(one.cost_usd)],
      ["requests", "num", (one) => String(one.requests)],
      ["input", "num", (one) => tokens(input(one))],
      ["from cache", "num", (one) => share(one.read_share)],
      ["output", "num", (one) => tokens(one.output_tokens)],
    ];
    put(this.sums, table("Costs", columns, found));
  }
}
