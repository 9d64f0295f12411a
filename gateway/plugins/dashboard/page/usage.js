/** Usage and costs of models: today's totals, and both plots. */

import { get } from "./api.js";
import { empty, h, show } from "./dom.js";
import { bytes, dollars, input, now as clock, share, tokens } from "./format.js";
import { Plot } from "./plot.js";

const HOUR = 3_600_000;
/** Hours up to which the gateway returns hours; beyond, days. */
const HOURLY_MOST = 72;

/** Rows `[what, value, more]` from `/api/status`. */
function figures({ today, agents, store }) {
  const own = agents.reduce((sum, one) => sum + one.turns_today, 0);
  const may = agents.reduce((sum, one) => sum + one.daily_turns, 0);
  const spent = agents.reduce((sum, one) => sum + one.spent_today_usd, 0);
  const budget = agents.reduce((sum, one) => sum + one.daily_cost_usd, 0);
  return [
    ["cost", dollars(today.cost_usd), "since midnight UTC"],
    ["read from cache", share(today.read_share), `${tokens(today.read_tokens)} tokens`],
    ["requests", String(today.requests), `${tokens(input(today))} tokens in`],
    ["written to cache", tokens(today.written_tokens), "tokens"],
    ["answered", tokens(today.output_tokens), "tokens out"],
    ["turns on its own", `${own}`, `of ${may}`],
    ["spent on these", dollars(spent), `of ${dollars(budget)}`],
    store.bytes_per_day === null
      ? ["store", bytes(store.size_bytes), "growth known after a day"]
      : [
          `store, +${bytes(store.bytes_per_day)} a day`,
          bytes(store.size_bytes),
          `disk ${store.full_on ? `full on ${store.full_on}` : "lasts for years"}`,
        ],
  ];
}

/** Row of totals. */
export function today(root, status) {
  show(
    root,
    figures(status).map(([what, value, more]) =>
      h(
        "div",
        { class: "figure" },
        h("span", { class: "what" }, what),
        h("span", { class: "value" }, value),
        h("span", { class: "more" }, more),
      ),
    ),
  );
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
    .map((total) => ({
      name: total.key,
      cells: cells(total),
      values: times.map((at) => value(by.get(`${total.key}\n${at}`))),
    }));
  return { from, to: times.at(-1) + width, width, times, series: named };
}

/** Both plots. */
export class Usage {
  constructor(shareRoot, costRoot, choice) {
    this.choice = choice;
    this.roots = [shareRoot, costRoot];
    this.plots = null;
    choice.addEventListener("change", () => this.refresh());
  }

  async refresh() {
    const hours = Number(this.choice.value);
    const answer = await get("/api/cache", { hours, by: "channel" });
    if (hours !== Number(this.choice.value)) return; // another period was chosen meanwhile
    if (!answer.totals.length) {
      this.plots = null;
      for (const root of this.roots)
        show(root, empty("There were no requests to a model in this time."));
      return;
    }
    this.plots ??= [
      new Plot(this.roots[0], {
        kind: "line",
        top: 1,
        format: share,
        label: "Share of input tokens that were read from the cache, per channel",
        columns: ["share", "read", "input"],
      }),
      new Plot(this.roots[1], {
        kind: "bars",
        format: dollars,
        label: "Cost per channel",
        columns: ["cost", "written", "output"],
      }),
    ];
    this.plots[0].draw(
      series(
        answer,
        hours,
        (one) => one?.read_share ?? null,
        (one) => [share(one.read_share), tokens(one.read_tokens), tokens(input(one))],
      ),
    );
    this.plots[1].draw(
      series(
        answer,
        hours,
        (one) => one?.cost_usd ?? null,
        (one) => [dollars(one.cost_usd), tokens(one.written_tokens), tokens(one.output_tokens)],
      ),
    );
  }
}
