/** Plots: drawn again when data or size change, coloured by the style sheet, read with pointer or arrow keys. */

import { h, s, said, show } from "./dom.js";
import { day, hour } from "./format.js";

const LEFT = 54;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const HEIGHT = 168;
/** Number of colours in the style sheet. */
const COLOURS = 8;

/** Return round steps, at most `most` in `span`. */
function step(span, most, sizes) {
  return sizes.find((size) => span / size <= most) ?? sizes.at(-1);
}

const MINUTE = 60_000;
const TIMES = [5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080].map((minutes) => minutes * MINUTE);

/** Return the ticks of a time axis in local time: `[ms, words]`. */
export function timeTicks(from, to, most) {
  const size = step(to - from, most, TIMES);
  const shift = new Date(from).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let at = Math.ceil((from - shift) / size) * size + shift; at <= to; at += size)
    found.push([at, size >= 1440 * MINUTE ? day(at) : hour(at)]);
  return found;
}

/** Return the ticks of a value axis, from 0. */
export function valueTicks(top) {
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const size = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? power;
  const found = [];
  for (let at = 0; at <= top * 1.0001; at += size) found.push(at);
  return found;
}

/** A plot with a legend. There may be several on a page, so nothing here is shared. */
export class Plot {
  /**
   * `kind`: `line`, or stacked `bars`. `top`: end of the value axis; null: the highest value. `format`: formats a
   * value. `label`: description for screen readers. `columns`: columns of the legend.
   */
  constructor(root, { kind, top = null, format, label, columns }) {
    Object.assign(this, { root, kind, top, format, label, columns, hidden: new Set(), data: null, at: null, width: 0 });
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h(
      "div",
      { class: "plot", tabindex: 0, role: "img", "aria-label": label, "aria-describedby": "" },
      this.tip,
    );
    this.box.removeAttribute("aria-describedby");
    this.legend = h("div.legend");
    show(root, this.box, this.legend);
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width === this.width) return;
      this.width = width;
      requestAnimationFrame(() => this.paint());
    }).observe(this.box);
    this.box.addEventListener("pointermove", (event) =>
      this.point(event.clientX - this.box.getBoundingClientRect().left),
    );
    this.box.addEventListener("pointerleave", () => this.hover(null));
    this.box.addEventListener("blur", () => this.hover(null));
    this.box.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !this.data) return;
      event.preventDefault();
      const last = this.data.times.length - 1;
      this.hover(this.at === null ? (by > 0 ? 0 : last) : Math.max(0, Math.min(last, this.at + by)));
    });
  }

  /** Draw `{from, to, width, times, series: [{name, values, cells}]}`, in ms. `width`: of a bucket. Null: not known. */
  draw(data) {
    this.data = data;
    this.at = null;
    this.rows();
    this.paint();
  }

  get shown() {
    return this.data.series
      .map((one, index) => ({ ...one, colour: (index % COLOURS) + 1 }))
      .filter((one) => !this.hidden.has(one.name));
  }

  rows() {
    const rows = this.data.series.map((one, index) => {
      const toggle = h(
        "button",
        {
          type: "button",
          class: "plain key",
          "aria-pressed": String(!this.hidden.has(one.name)),
          "data-name": one.name,
          title: "Show or hide",
          on: { click: () => this.toggle(one.name, toggle) },
        },
        h("i", { class: `swatch c${(index % COLOURS) + 1}` }),
        said(one.name),
      );
      return h("tr", h("th", { scope: "row" }, toggle),
        one.cells.map((cell) => h("td", cell)),
      );
    });
    const head = h("tr", h("th", { scope: "col" }, "channel"),
      this.columns.map((name) => h("th", { scope: "col" }, name)),
    );
    const kept = this.legend.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    show(this.legend, h("table", h("thead", head), h("tbody", rows)));
    if (kept) [...this.legend.querySelectorAll("button")].find((one) => one.dataset.name === kept)?.focus();
  }

  toggle(name, button) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    this.paint();
  }

  x = (ms) => LEFT + ((ms - this.data.from) / (this.data.to - this.data.from)) * (this.width - LEFT - RIGHT);
  y = (value) => TOP + (1 - value / this.high) * (HEIGHT - TOP - BOTTOM);

  paint() {
    if (!this.data || this.width < 80) return;
    const shown = this.shown;
    const sums = this.data.times.map((_, index) =>
      this.kind === "bars"
        ? shown.reduce((sum, one) => sum + (one.values[index] ?? 0), 0)
        : Math.max(0, ...shown.map((one) => one.values[index] ?? 0)),
    );
    this.high = this.top ?? (Math.max(...sums, 0) * 1.05 || 1);
    const right = this.width - RIGHT;
    const grid = valueTicks(this.high).map((value) => [
      s("line", { class: "gridline", x1: LEFT, x2: right, y1: this.y(value), y2: this.y(value) }),
      s("text", { x: LEFT - 6, y: this.y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const ticks = timeTicks(this.data.from, this.data.to, Math.max(2, this.width / 80)).map(([at, words]) =>
      s("text", { x: this.x(at), y: HEIGHT - 5, "text-anchor": this.x(at) > right - 20 ? "end" : "middle" }, words),
    );
    this.cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    const drawing = s(
      "svg",
      { width: this.width, height: HEIGHT, viewBox: `0 0 ${this.width} ${HEIGHT}`, "aria-hidden": "true" },
      grid,
      ticks,
      this.kind === "bars" ? this.bars(shown) : shown.map((one) => this.line(one)),
      this.cursor,
    );
    this.box.querySelector("svg")?.remove();
    this.box.prepend(drawing);
    this.hover(this.at);
  }

  line({ values, colour }) {
    const points = values.map((value, index) =>
      value === null ? null : [this.x(this.data.times[index] + this.data.width / 2), this.y(value)],
    );
    let path = "";
    points.forEach(
      (point, index) =>
        (path += point ? `${points[index - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : ""),
    );
    const dots = points
      .filter((point) => point && points.length <= 60)
      .map(([x, y]) => s("circle", { class: `dot c${colour}`, cx: x, cy: y, r: 2.5 }));
    return [s("path", { class: `curve c${colour}`, d: path }), dots];
  }

  bars(shown) {
    const wide = Math.max(1, this.x(this.data.from + this.data.width) - LEFT - 2);
    return this.data.times
      .map((at, index) => {
        let base = 0;
        return shown.map(({ values, colour }) => {
          const value = values[index] ?? 0;
          if (!value) return null;
          base += value;
          return s("rect", {
            class: `fill c${colour}`,
            x: this.x(at) + 1,
            width: wide,
            y: this.y(base),
            height: Math.max(0.5, this.y(base - value) - this.y(base)),
          });
        });
      })
      .flat()
      .filter(Boolean);
  }

  point(x) {
    if (!this.data?.times.length) return;
    const ms = this.data.from + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (this.data.to - this.data.from);
    this.hover(
      Math.max(0, Math.min(this.data.times.length - 1, Math.floor((ms - this.data.times[0]) / this.data.width))),
    );
  }

  hover(index) {
    this.at = index;
    if (index === null || !this.data || !this.cursor) {
      this.tip.hidden = true;
      this.cursor?.setAttribute("visibility", "hidden");
      this.box.setAttribute("aria-label", this.label);
      return;
    }
    const at = this.data.times[index];
    const x = this.x(at + this.data.width / 2);
    const when = `${day(at)} ${hour(at)}–${hour(at + this.data.width)}`;
    const values = this.shown.map((one) => ({ ...one, value: one.values[index] })).filter((one) => one.value !== null);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
    show(
      this.tip,
      h("strong", when),
      values.length
        ? values.map((one) =>
            h("div", h("i", { class: `swatch c${one.colour}` }),
              said(one.name),
              h("b", this.format(one.value)),
            ),
          )
        : h("div.quiet", "nothing was asked"),
    );
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, x > this.width / 2 ? x - wide - 12 : x + 12))}px`;
    this.box.setAttribute(
      "aria-label",
      `${this.label}. ${when}: ${values.map((one) => `${one.name} ${this.format(one.value)}`).join(", ") || "nothing was asked"}`,
    );
  }
}
