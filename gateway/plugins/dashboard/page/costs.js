/** Usage and costs of models: plots over time, and sums by day, room, person, model and agent. */

import { get } from "./api.js";
import { empty, h, panel, put, quiet, said, select, show, titleOf } from "./dom.js";
import { dollars, input, now as clock, share } from "./format.js";
import { Plot } from "./plot.js";
import { table } from "./tables.js";

const HOUR = 3_600_000;
/** Hours up to which the gateway returns hours; beyond, days. */
const HOURLY_MOST = 72;
const NONE = "There were no requests to a model in this time.";

/** Convert the answer of `/api/cache` to the data of a plot of one field. */
function series({ buckets, totals }, hours, field) {
  const width = hours > HOURLY_MOST ? 24 * HOUR : HOUR;
  const now = clock();
  const first = Math.min(...buckets.map((one) => Date.parse(one.at)), now);
  const from = first + Math.ceil((now - hours * HOUR - first) / width) * width - width;
  const times = Array.from({ length: Math.floor((now - from) / width) + 1 }, (_, index) => from + index * width);
  const known = new Map(buckets.map((one) => [`${one.key} ${Date.parse(one.at)}`, one[field]]));
  const names = totals.map((one) => one.key).sort(); // so that each keeps its colour
  return { times, width, series: names.map((name) => ({ name, values: times.map((at) => known.get(`${name} ${at}`) ?? null) })) };
}

export class Costs {
  constructor() {
    this.hours = select("Span", { "24 hours": 24, "7 days": 168, "31 days": 744 });
    this.by = select("Sums by", { channel: "channel", room: "conversation", day: "day", person: "person", model: "model", agent: "agent" });
    this.hours.onchange = this.by.onchange = () => this.refresh();
    this.cost = new Plot({ kind: "bars", format: dollars, label: "Cost per channel" });
    this.share = new Plot({ kind: "line", top: 1, format: share, label: "Read from the cache" });
    this.sums = h("div.body");
    this.none = h("div");
    this.plots = h("div.columns", panel("Cost per channel", this.cost.root), panel("Read from the cache", this.share.root, quiet("share of input tokens")));
    this.tools = [h("span.spring"), this.hours];
    this.body = [this.none, this.plots, panel("Sums", this.sums, [h("span.spring"), "by ", this.by])];
  }

  async refresh() {
    const [hours, by] = [Number(this.hours.value), this.by.value];
    const channels = get("/api/cache", { hours, by: "channel" });
    const { items } = by === "channel" ? { items: (await channels).totals } : await get("/api/spending", { hours, by });
    const answer = await channels;
    if (hours !== Number(this.hours.value) || by !== this.by.value) return; // another choice was made meanwhile
    const most = Math.max(...items.map((one) => one.cost_usd)) || 1;
    put(this.sums, items.length ? table("Costs", items.map((one) => this.row(one, most))) : empty(NONE));
    this.plots.hidden = !answer.totals.length;
    show(this.none, answer.totals.length ? null : empty(NONE));
    if (!answer.totals.length) return;
    this.cost.draw(series(answer, hours, "cost_usd"));
    this.share.draw(series(answer, hours, "read_share"));
  }

  /** A row of the table of sums. */
  row(one, most) {
    return {
      [this.by.selectedOptions[0].text]: said(one.label || titleOf(one.key) || "–", { title: one.key }),
      "share of cost": h("span.meter", { "aria-hidden": "true", style: { "--part": one.cost_usd / most } }),
      cost_usd: one.cost_usd,
      requests: one.requests,
      input_tokens: input(one),
      "from cache_share": one.read_share ?? 0,
      output_tokens: one.output_tokens,
    };
  }
}
