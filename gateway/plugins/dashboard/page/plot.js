/** Plots of values over time. A slider below reads the values of one time, by pointer, touch or keys. */

import { chip, h, said, show } from "./dom.js";
import { day, hour } from "./format.js";

/** Number of colours in the style sheet. */
const COLOURS = 8;
const MOST_TICKS = 8;
const DAY_MS = 86_400_000;

/** Return the smallest round number that is not less. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 4, 5, 10].map((one) => one * power).find((one) => one >= value) ?? power;
}

export class Plot {
  /** `kind`: `line`, or stacked `bars`. `top`: end of the axis; null: by the values. */
  constructor({ kind, top = null, format, label }) {
    Object.assign(this, { kind, top, format });
    this.drawing = h("svg:svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.slider = h("input", { type: "range", min: 0, "aria-label": `${label}: time`, oninput: () => this.read() });
    this.told = h("p.told");
    this.axis = h("div.axis.quiet", { "aria-hidden": "true" });
    this.ticks = h("div.ticks.quiet", { "aria-hidden": "true" });
    this.drawing.addEventListener("pointermove", (event) => {
      this.slider.value = Math.floor((event.offsetX / this.drawing.clientWidth) * this.times.length);
      this.read();
    });
    this.root = h("div.plot", this.axis, this.drawing, this.slider, this.ticks, this.told);
  }

  /** Draw `{times, width, series: [{name, values}]}`. `times`: begins of buckets of `width`, in ms. Null: not known. */
  draw({ times, width, series }) {
    Object.assign(this, { times, width, series });
    const sums = times.map((_, index) => series.map((one) => one.values[index] ?? 0));
    const high = this.kind === "bars" ? sums.map((all) => all.reduce((sum, one) => sum + one, 0)) : sums.flat();
    this.high = this.top ?? round(Math.max(0, ...high));
    this.cursor = h("svg:path.cursor");
    this.drawing.setAttribute("viewBox", `0 0 ${times.length} 1`);
    show(
      this.drawing,
      h("svg:path.gridline", { d: [0, 0.25, 0.5, 0.75, 1].map((y) => `M0 ${y}H${times.length}`).join("") }),
      series.map((one, index) => (this.kind === "line" ? this.line(one, index) : this.bars(index))),
      this.cursor,
    );
    show(this.axis, [1, 0.75, 0.5, 0.25, 0].map((part) => h("span", this.format(part * this.high))));
    const every = Math.ceil(times.length / MOST_TICKS);
    show(this.ticks, times.map((at, index) => h("span", index % every ? "" : width < DAY_MS ? hour(at) : day(at))));
    this.slider.max = times.length - 1;
    this.read();
  }

  y = (value) => 1 - value / this.high;
  colour = (index) => `c${(index % COLOURS) + 1}`;

  /** A curve through the middles of the buckets, broken where a value is not known. `h0` draws a value that stands alone. */
  line({ values }, index) {
    const point = (value, at) => (value === null ? "" : `${(values[at - 1] ?? null) === null ? "M" : "L"}${at + 0.5} ${this.y(value)}h0`);
    return h("svg:path.curve", { class: this.colour(index), d: values.map(point).join("") });
  }

  /** The bars of a series, which stand on those of the series before it. */
  bars(index) {
    const bar = (_, at) => {
      const value = this.series[index].values[at] ?? 0;
      const base = this.series.slice(0, index).reduce((sum, one) => sum + (one.values[at] ?? 0), 0);
      return value ? `M${at + 0.1} ${this.y(base)}h0.8V${this.y(base + value)}h-0.8z` : "";
    };
    return h("svg:path.fill", { class: this.colour(index), d: this.times.map(bar).join("") });
  }

  /** Tell the values of the chosen time. */
  read() {
    const index = this.slider.valueAsNumber;
    const at = this.times[index];
    const values = this.series.map((one, place) => [one.name, one.values[index], place]).filter(([, value]) => value !== null);
    const when = `${day(at)} ${hour(at)}–${hour(at + this.width)}`;
    const words = values.map(([name, value]) => `${name} ${this.format(value)}`);
    this.cursor.setAttribute("d", `M${index + 0.5} 0V1`);
    this.slider.setAttribute("aria-valuetext", `${when}: ${words.join(", ") || "nothing was asked"}`);
    show(this.told, `${when} `, words.map((text, place) => [h("i", { class: this.colour(values[place][2]) }), " ", said(text), " "]), words.length ? null : chip("nothing was asked"));
  }
}
