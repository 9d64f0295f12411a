/** Search in the whole log. */

import { get } from "./api.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { COLUMNS, unfolded } from "./live.js";
import { Rows } from "./rows.js";

const PAGE = 100;

export class Search {
  constructor({ form, text, list, count }) {
    Object.assign(this, { text, count, items: [], next: null, asked: "" });
    this.rows = new Rows(list, {
      label: "What was found, newest first",
      none: "Write words that you remember; all messages since the beginning are searched.",
      columns: [COLUMNS[0], ["kind", "state", (one) => h("span.chip.calm", one.kind)], ...COLUMNS.slice(2, -1)],
      details: unfolded,
      more: () => this.further(),
    });
    this.rows.set([]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.find().catch((error) => (this.count.textContent = error.message));
    });
  }

  async find() {
    this.asked = this.text.value.trim();
    Object.assign(this, { items: [], next: null });
    if (this.asked) await this.page();
    this.count.textContent = this.asked ? `${plural(this.items.length, "entry", "entries")}${this.next ? " and more" : ""}` : "";
    this.rows.set(this.items, this.asked ? "Nothing was found. Fewer words find more." : undefined);
  }

  async page() {
    const asked = this.asked;
    const answer = await get("/api/search", { text: asked, before: this.next, limit: PAGE });
    if (asked !== this.asked) return 0;
    Object.assign(this, { items: [...this.items, ...answer.items], next: answer.next });
    return answer.items.length;
  }

  async further() {
    if (!this.next || !(await this.page())) return false;
    this.rows.set(this.items);
    return true;
  }
}
