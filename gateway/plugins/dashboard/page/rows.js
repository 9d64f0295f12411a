/**
 * A list of any length. Only the rows in sight are in the document: all have the height that the style sheet gives as
 * `--row`, besides the one that is opened.
 */

import { empty, h, show } from "./dom.js";

const SPARE = 8;
const JUMPS = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

export class Rows {
  /**
   * `columns`: `[heading, class, cell of an item]`. `details`: returns the nodes of an opened item. `none`: words for
   * an empty list. `more`: loads further items when the end comes in sight; returns false if there are none.
   */
  constructor(root, { label, columns, details, none, more = null }) {
    Object.assign(this, { root, columns, details, none, more, items: [], places: new Map(), drawn: new Map() });
    Object.assign(this, { opened: null, active: 0, extra: 0, loading: false });
    this.list = h("ol", { class: "window", "aria-label": label });
    this.blank = h("div");
    const heads = columns.map(([name, kind]) => h("span", { class: kind }, name));
    show(root, h("div", { class: "heads line", "aria-hidden": "true" }, heads), this.blank, this.list);
    root.classList.add("rows", "scroll");
    root.addEventListener("scroll", () => this.paint(), { passive: true });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("focusin", (event) => {
      const at = this.places.get(event.target.closest("li")?.row);
      if (at !== undefined) this.active = at;
    });
    this.sized = new ResizeObserver(() => this.measure());
    this.sized.observe(root);
  }

  /** Show these items, the first on top. Each has a `seq` of its own. What is in sight stays where it is. */
  set(items, none = this.none) {
    const top = this.root.scrollTop;
    const first = top > this.row ? this.items[Math.floor(top / this.row)]?.seq : undefined;
    const active = this.items[this.active]?.seq;
    const before = this.places.get(first);
    this.items = items;
    this.places = new Map(items.map((one, index) => [one.seq, index]));
    if (!this.places.has(this.opened)) this.opened = null;
    this.active = this.places.get(active) ?? 0;
    show(this.blank, items.length ? [] : empty(none));
    this.list.hidden = !items.length;
    const after = this.places.get(first);
    this.list.style.height = `${this.height}px`;
    if (after !== undefined && after !== before) this.root.scrollTop = top + (after - before) * this.row;
    this.paint();
  }

  get height() {
    return this.items.length * this.row + (this.opened === null ? 0 : this.extra);
  }

  measure() {
    const row = parseFloat(getComputedStyle(this.root).getPropertyValue("--row"));
    this.extra = this.list.querySelector(".unfolded")?.offsetHeight ?? 0;
    if (row !== this.row) for (const one of this.drawn.values()) one.remove();
    if (row !== this.row) this.drawn.clear();
    this.row = row;
    this.list.style.height = `${this.height}px`;
    this.paint();
  }

  /** Return where a row stands, in px. */
  top = (index) => index * this.row + (this.places.get(this.opened) < index ? this.extra : 0);

  paint() {
    if (!this.row || !this.root.clientHeight) return;
    const from = this.root.scrollTop;
    const extra = this.opened === null ? 0 : this.extra;
    const first = Math.max(0, Math.floor((from - extra) / this.row) - SPARE);
    const last = Math.min(this.items.length, Math.ceil((from + this.root.clientHeight) / this.row) + SPARE);
    const wanted = new Map();
    for (let index = first; index < last; index += 1) wanted.set(this.items[index], index);
    const focused = this.list.contains(document.activeElement);
    if (focused && this.items[this.active]) wanted.set(this.items[this.active], this.active);
    for (const [item, element] of this.drawn)
      if (!wanted.has(item)) {
        const again = [...wanted.keys()].find((one) => one.seq === item.seq);
        const had = again && element.contains(document.activeElement);
        element.remove();
        this.drawn.delete(item);
        if (had) this.draw(again, wanted.get(again)).querySelector(".line").focus({ preventScroll: true });
      }
    for (const [item, index] of wanted) {
      const element = this.drawn.get(item) ?? this.draw(item, index);
      element.style.top = `${this.top(index)}px`;
      element.setAttribute("aria-posinset", String(index + 1));
      element.setAttribute("aria-setsize", String(this.items.length));
      element.firstChild.tabIndex = index === this.active ? 0 : -1;
    }
    if (this.items[this.active] && !wanted.has(this.items[this.active]) && wanted.size) {
      this.active = first; // Tab finds a row that is in sight
      this.drawn.get(this.items[first]).firstChild.tabIndex = 0;
    }
    if (last === this.items.length && this.items.length) this.load();
  }

  draw(item, index) {
    const open = item.seq === this.opened;
    const line = h(
      "div",
      { class: "line", role: "button", tabindex: -1, "aria-expanded": String(open), on: { click: () => this.toggle(item) } },
      this.columns.map(([name, kind, cell]) => h("span", { class: kind, "data-name": name }, cell(item))),
    );
    const element = h("li", { class: item.tone ?? null }, line, open ? this.unfold(item) : null);
    element.row = item.seq;
    this.drawn.set(item, element);
    const next = this.items.slice(index + 1, index + 80).find((one) => this.drawn.has(one));
    this.list.insertBefore(element, this.drawn.get(next) ?? null);
    return element;
  }

  unfold(item) {
    const body = h("div.unfolded", this.details(item));
    this.sized.observe(body);
    return body;
  }

  toggle(item) {
    if (getSelection().toString() && this.opened === item.seq) return; // text is being copied
    for (const one of [this.items[this.places.get(this.opened)], item]) this.drawn.get(one)?.querySelector(".unfolded")?.remove();
    const before = this.items[this.places.get(this.opened)];
    this.drawn.get(before)?.firstChild.setAttribute("aria-expanded", "false");
    this.opened = this.opened === item.seq ? null : item.seq;
    if (this.opened !== null) {
      const element = this.drawn.get(item);
      element.firstChild.setAttribute("aria-expanded", "true");
      element.append(this.unfold(item));
    }
    this.measure();
  }

  key(event) {
    const at = event.target.classList.contains("line") ? this.active : null;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape" && this.opened !== null) {
      event.stopPropagation();
      const item = this.items[this.places.get(this.opened)];
      this.toggle(item);
      return this.go(this.places.get(item.seq));
    }
    if (at === null) return;
    const item = this.items[at];
    if (event.key === "Enter" || event.key === " ") this.toggle(item);
    else if (event.key in JUMPS) this.go(at + JUMPS[event.key]);
    else return;
    event.preventDefault();
  }

  /** Move the focus to a row. */
  go(index) {
    const to = Math.max(0, Math.min(this.items.length - 1, index));
    const [top, shown] = [this.top(to), this.root.clientHeight - 2 * this.row];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (top > this.root.scrollTop + shown) this.root.scrollTop = top - shown;
    this.active = to;
    this.paint();
    this.active = to;
    (this.drawn.get(this.items[to]) ?? this.draw(this.items[to], to)).firstChild.focus({ preventScroll: true });
    this.paint();
  }

  async load() {
    if (!this.more || this.loading) return;
    this.loading = true;
    const further = await this.more().catch(() => false);
    this.loading = false;
    if (further) this.paint();
  }
}
