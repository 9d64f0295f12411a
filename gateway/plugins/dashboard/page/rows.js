/** Lists of any length, and lists of the log. */

import { get } from "./api.js";
import { empty, h, show } from "./dom.js";

/** Rows beyond those in sight. */
const SPARE = 4;
const JUMPS = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
const PAGE = 200;
/** Most entries of a list that are kept as new ones come in. */
export const MOST = 10_000;
/** Milliseconds between two updates of the DOM. */
const EVERY_MS = 100;

/**
 * A list of any length. Only the rows in sight are in the document: all have the height that the style sheet gives as
 * `--row`. The focus stays on the list; its active row is told by `aria-activedescendant`.
 */
export class Rows {
  /**
   * `columns`: `[heading, class, cell of an item]`. `details(item)`: nodes that are shown below the list when a row is
   * opened; else `open(item)` is called. `none`: words for an empty list. `more()`: loads further items at the end.
   */
  constructor({ label, columns, details, open = (item) => this.unfold(item), none, more }) {
    Object.assign(this, { columns, details, open, none, more, items: [], drawn: new Map(), active: null, opened: null, loading: false });
    this.window = h("div.window");
    this.list = h(
      "div.rows.scroll",
      {
        role: "listbox",
        tabindex: 0,
        "aria-label": label,
        onkeydown: (event) => this.key(event),
        onclick: (event) => this.click(event),
        onfocus: () => this.focused(),
        onscroll: () => this.paint(),
      },
      this.window,
    );
    this.blank = h("div");
    this.below = h("div.below", { onkeydown: (event) => event.key === "Escape" && this.fold() });
    const heads = details && h("div.line.heads", { "aria-hidden": "true" }, columns.map(([name, kind]) => h("span", { class: kind }, name)));
    this.root = h("div.panel.list", heads, this.blank, this.list, this.below);
    new ResizeObserver(() => {
      this.row = parseFloat(getComputedStyle(this.list).getPropertyValue("--row"));
      this.paint();
    }).observe(this.list);
  }

  index = (seq) => this.items.findIndex((one) => one.seq === seq);

  /** Show these items, the first on top. Each has a `seq` of its own. What is in sight stays where it is. */
  set(items, none = this.none) {
    const [top, row] = [this.list.scrollTop, this.row];
    const first = top > row ? Math.floor(top / row) : null;
    const seq = this.items[first]?.seq;
    this.items = items;
    show(this.blank, items.length ? null : empty(none));
    this.list.hidden = !items.length;
    this.window.style.setProperty("--count", items.length);
    const after = first === null ? -1 : this.index(seq);
    if (after >= 0 && after !== first) this.list.scrollTop = top + (after - first) * row;
    if (this.opened !== null && this.index(this.opened) < 0) this.fold();
    this.paint();
  }

  paint() {
    const { scrollTop, clientHeight } = this.list;
    if (!clientHeight || !this.row) return;
    const first = Math.max(0, Math.floor(scrollTop / this.row) - SPARE);
    const last = Math.ceil((scrollTop + clientHeight) / this.row) + SPARE;
    const before = this.drawn;
    this.drawn = new Map(this.items.slice(first, last).map((item) => [item, before.get(item) ?? this.line(item)]));
    for (const [item, line] of before) if (!this.drawn.has(item)) line.remove();
    let [at, index] = [this.window.firstChild, first];
    for (const [item, line] of this.drawn) {
      if (line === at) at = at.nextSibling;
      else this.window.insertBefore(line, at);
      index += 1;
      const place = [index, this.items.length, item.seq === this.active].map(String);
      if (place.join() === line.place) continue; // setting it again would cost
      line.place = place.join();
      line.style.top = `${(index - 1) * this.row}px`;
      [line.ariaPosInSet, line.ariaSetSize, line.ariaSelected] = place;
    }
    this.list.ariaActiveDescendantElement = this.window.querySelector("[aria-selected=true]");
    if (last >= this.items.length && this.items.length) this.load();
  }

  line = (item) =>
    h("div.line", { key: item.seq, class: item.tone, role: "option" }, this.columns.map(([, kind, cell]) => h("span", { class: kind }, cell(item))));

  focused() {
    if (this.index(this.active) < 0) this.active = this.items[Math.ceil(this.list.scrollTop / this.row)]?.seq ?? null;
    this.paint();
  }

  click(event) {
    const item = this.items[this.index(event.target.closest(".line")?.key)];
    if (!item || event.target.closest("a, button")) return;
    this.active = item.seq;
    this.paint();
    this.open(item);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target !== this.list) return;
    const at = this.index(this.active);
    if (event.key in JUMPS) this.go(at + JUMPS[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && at >= 0) this.open(this.items[at]);
    else if (event.key === "Escape" && this.opened !== null) {
      event.stopPropagation();
      this.fold();
    } else return;
    event.preventDefault();
  }

  /** Make a row the active one. Details that are open follow. */
  go(index) {
    const item = this.items[Math.max(0, Math.min(this.items.length - 1, index))];
    if (!item || item.seq === this.active) return;
    this.active = item.seq;
    this.reveal();
    if (this.opened !== null) this.unfold(item);
  }

  /** Scroll as little as needed to have the active row in sight. */
  reveal() {
    const top = this.index(this.active) * this.row;
    this.list.scrollTop = Math.min(top, Math.max(this.list.scrollTop, top + this.row - this.list.clientHeight));
    this.paint();
  }

  /** Show the details of an item below the list; close them if they are shown. */
  unfold(item) {
    if (this.opened === item.seq) return this.fold();
    this.opened = item.seq;
    const close = h("button.plain.close", { "aria-label": "Close the details", title: "Close (Esc)", onclick: () => this.fold() }, "✕");
    show(this.below, h("section.unfolded.scroll", { tabindex: 0, "aria-label": "Details" }, close, this.details(item)));
    this.reveal();
  }

  fold() {
    this.opened = null;
    if (this.below.contains(document.activeElement)) this.list.focus();
    show(this.below);
  }

  async load() {
    if (!this.more || this.loading) return;
    this.loading = true;
    await this.more().catch(() => {});
    this.loading = false;
  }
}

/** A list of the log, the newest on top, which goes back as far as it is scrolled. */
export class Log {
  /** `path`: of the API; null: there are only entries that are taken. `name`, `title`, `hint`: of the view. */
  constructor(path, { name, title, hint, ...options }) {
    Object.assign(this, { name, title, hint, tall: true, path, query: {}, entries: new Map(), next: null, timer: null, none: options.none });
    this.rows = new Rows({ ...options, label: `${title}, newest first`, more: () => this.older() });
    this.body = this.rows.root;
  }

  /** Load the newest entries, also to learn what became of them. Entries that came in meanwhile stay. */
  async load() {
    if (this.path === null) return this.draw();
    const query = this.query;
    const { items, next } = await get(this.path, { ...query, limit: PAGE });
    if (query !== this.query) return; // another question was asked meanwhile
    if (!items.some((one) => this.entries.has(one.seq))) {
      const oldest = items.at(-1)?.seq ?? 0;
      for (const seq of this.entries.keys()) if (seq < oldest) this.entries.delete(seq); // there is a gap between
      this.next = next;
    }
    this.add(items);
  }

  async older() {
    if (this.next === null) return;
    const query = this.query;
    const { items, next } = await get(this.path, { ...query, limit: PAGE, before: this.next });
    if (query !== this.query) return;
    this.next = next;
    this.add(items);
  }

  add(items) {
    for (const one of items) this.entries.set(one.seq, one);
    this.draw();
  }

  /** Add an entry that is new. It is shown within `EVERY_MS`. */
  take(entry) {
    this.entries.set(entry.seq, entry);
    if (this.entries.size > MOST) {
      this.entries.delete(Math.min(...this.entries.keys()));
      this.next = null; // what is older would be dropped again
    }
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.draw();
    }, EVERY_MS);
  }

  /** All entries, the newest first. */
  get sorted() {
    return [...this.entries.values()].sort((a, b) => b.seq - a.seq);
  }

  /** Position of the newest entry; 0: there is none. */
  get newest() {
    return Math.max(0, ...this.entries.keys());
  }

  draw() {
    this.rows.set(this.sorted, this.none);
  }
}
