/** Panels of plugins: a table each, whose rows the plugin answers. */

import { get } from "./api.js";
import { empty, h, said, show } from "./dom.js";
import { put, table } from "./tables.js";

export class Plugins {
  /** `main`: where the panels are added, at the end. */
  constructor(main) {
    Object.assign(this, { main, bodies: new Map() });
  }

  async refresh() {
    const { items } = await get("/api/plugins");
    for (const { name, panels } of items)
      for (const [heading, path] of Object.entries(panels)) await this.paint(name, heading, path);
  }

  async paint(name, heading, path) {
    const body = this.body(name, heading, path);
    let rows;
    try {
      rows = await get(path);
    } catch (error) {
      if (error.status === 401 || !error.status) throw error;
      return show(body, h("p", { class: "reason" }, said(error.message)));
    }
    if (!rows.length) return show(body, empty("There is nothing yet."));
    const columns = Object.keys(rows[0]).map((column) => {
      const kind = rows.every((row) => typeof row[column] === "number") ? "num" : "wide";
      return [said(column), kind, (row) => said(String(row[column] ?? ""))];
    });
    put(body, table(heading, columns, rows));
  }

  /** Return the body of a panel, which is made at first. */
  body(name, heading, path) {
    if (!this.bodies.has(path)) {
      const id = `plugin-${name}-${this.bodies.size}`;
      const title = h("h2", { id: `${id}-h` }, said(heading));
      const body = h("div", { class: "body scroll", tabindex: "0", role: "region", "aria-labelledby": `${id}-h` });
      const header = h("header", {}, title, h("span", { class: "quiet" }, said(name)));
      this.main.append(
        h("section", { id, class: "panel half", "aria-labelledby": `${id}-h`, tabindex: "-1" }, header, body),
      );
      this.bodies.set(path, body);
    }
    return this.bodies.get(path);
  }
}
