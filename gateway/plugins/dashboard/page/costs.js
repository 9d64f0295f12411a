/** Costs of models: per channel over time, and sums by channel, room, day, person, model and agent. */

import { get } from "./api.js";
import { h, panel, put, said, select, show } from "./dom.js";
import { day, dollars, hour, input, now } from "./format.js";
import { table } from "./tables.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** Hours up to which the gateway returns hours; beyond, days. */
const HOURLY_MOST = 72;
const MOST_TICKS = 8;
/** Number of colours in the style sheet. */
const COLOURS = 8;
const NONE = "There were no requests to a model in this time.";

/** Return the smallest round number that is not less. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 4, 5, 10].map((one) => one * power).find((one) => one >= value) ?? power;
}

const colour = (index) => `c${(index % COLOURS) + 1}`;

export class Costs {
  constructor() {
    Object.assign(this, { name: "costs", title: "Costs", sums: h("div"), times: [] });
    this.hours = select("Span", { "24 hours": 24, "7 days": 168, "31 days": 744 });
    this.by = select("Sums by", { channel: "channel", room: "conversation", day: "day", person: "person", model: "model", agent: "agent" });
    this.hours.onchange = this.by.onchange = () => this.load();
    this.bars = h("div.bars", { "aria-hidden": "true" });
    this.slider = h("input", { type: "range", min: 0, "aria-label": "Time of the costs", oninput: () => this.choose(this.slider.value) });
    this.told = h("p.told");
    this.axis = h("div.axis", { "aria-hidden": "true" });
    this.ticks = h("div.ticks", { "aria-hidden": "true" });
    this.plot = h("div.plot", this.axis, this.bars, this.slider, this.ticks, this.told);
    this.tools = this.hours;
    this.body = [panel("Cost per channel", this.plot), panel("Sums", this.sums, [" by ", this.by])];
  }

  async load() {
    const [hours, by] = [Number(this.hours.value), this.by.value];
    const channels = await get("/api/cache", { hours, by: "channel" });
    const items = by === "channel" ? channels.totals : (await get("/api/spending", { hours, by })).items;
    if (hours !== Number(this.hours.value) || by !== this.by.value) return; // another choice was made meanwhile
    const most = Math.max(...items.map((one) => one.cost_usd)) || 1;
    put(this.sums, table("Costs", items.map((one) => this.row(one, most)), NONE));
    this.draw(channels, hours);
  }

  /** A row of the table of sums. */
  row(one, most) {
    return {
      [this.by.selectedOptions[0].text]: said(one.label || one.key || "–", { title: one.key }),
      "share of cost": h("span.meter", { "aria-hidden": "true", style: { "--part": one.cost_usd / most } }),
      cost_usd: one.cost_usd,
      requests: one.requests,
      input_tokens: input(one),
      "from cache_share": one.read_share ?? 0,
      output_tokens: one.output_tokens,
    };
  }

  /** Draw the costs of each hour or day, of all channels upon each other. */
  draw({ buckets, totals }, hours) {
    this.width = hours > HOURLY_MOST ? DAY_MS : HOUR_MS;
    const last = Math.floor(now() / this.width) * this.width;
    const count = (hours * HOUR_MS) / this.width + 1;
    this.times = Array.from({ length: count }, (_, index) => last + (index + 1 - count) * this.width);
    this.names = totals.map((one) => one.key).sort(); // so that each keeps its colour
    const known = new Map(buckets.map((one) => [`${one.key} ${Date.parse(one.at)}`, one.cost_usd]));
    this.costs = this.times.map((at) => this.names.map((name) => known.get(`${name} ${at}`) ?? 0));
    const high = round(Math.max(...this.costs.map((all) => all.reduce((sum, one) => sum + one, 0))));
    const part = (cost, index) => h("i", { class: colour(index), style: { height: `${(100 * cost) / high}%` } });
    const bar = (all, at) => h("div", { onpointermove: () => this.choose(at) }, all.map(part));
    const every = Math.ceil(count / MOST_TICKS);
    show(this.bars, this.costs.map(bar));
    show(this.axis, [1, 0.5, 0].map((part) => h("span", dollars(part * high))));
    show(this.ticks, this.times.map((at, index) => h("span", index % every ? "" : this.width < DAY_MS ? hour(at) : day(at))));
    const at = this.slider.max === `${count - 1}` ? this.slider.value : count - 1;
    this.slider.max = count - 1;
    this.choose(at);
  }

  /** Tell the costs of a time. */
  choose(index) {
    this.slider.value = index;
    const at = this.times[index];
    const when = `${day(at)} ${hour(at)}–${hour(at + this.width)}`;
    const words = this.names.map((name, place) => `${name} ${dollars(this.costs[index][place])}`);
    this.slider.setAttribute("aria-valuetext", `${when}: ${words.join(", ") || NONE}`);
    show(this.told, `${when} `, words.map((text, place) => [h("i", { class: colour(place) }), " ", said(text), " "]), words.length ? null : NONE);
  }
}
