/** Plugins: what is in use, and their panels: tables whose rows may have buttons. */

import { button, resultOf, send, tell } from "./acts.js";
import { get, may, maybe } from "./api.js";
import { empty, h, put, said, show } from "./dom.js";
import { plural, time } from "./format.js";
import { markdown } from "./markdown.js";
import { table } from "./tables.js";

/** Plugins whose panels belong to the view of the agent. */
const OF_AGENTS = ["reminders", "journal", "memory", "skills", "intentions"];
const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;

/** Return a value of a row as a node. */
function value(one) {
  if (typeof one === "string" && ISO.test(one)) return time(one);
  return typeof one === "string" && /\n|[*`#|]/.test(one) ? h("div.note", markdown(one)) : said(String(one ?? ""));
}

export class Plugins {
  /** `list`: where the plugins are listed; `own`, `others`: where panels of agents and of other plugins are added. */
  constructor(list, own, others) {
    Object.assign(this, { list, own, others, bodies: new Map() });
  }

  async refresh() {
    const { items } = await get("/api/plugins");
    const rows = [
      ["plugin", "mono short", (one) => said(one.name)],
      ["what it does", "wide", (one) => said(one.summary)],
      ["last problem", "wide", (one) => (one.problem ? h("span.warn", said(one.problem)) : "–")],
    ];
    put(this.list, table("Plugins", rows, items));
    for (const { name, panels } of items)
      for (const [heading, path] of Object.entries(panels)) await this.paint(name, heading, path);
  }

  async paint(name, heading, path) {
    const body = this.body(name, heading, path);
    let rows;
    try {
      rows = await maybe(path);
    } catch (error) {
      if (error.status === 401 || !error.status) throw error;
      return show(body, h("p.reason", said(error.message)));
    }
    body.closest(".panel").hidden = rows === null;
    body.closest(".panel").querySelector("header .quiet").textContent = rows?.length ? plural(rows.length, "entry", "entries") : "";
    if (!rows?.length) return put(body, resultOf(path), empty("There is nothing yet."));
    const columns = Object.keys(rows[0]).filter((column) => column !== "_actions").map((column) => {
      const kind = rows.every((row) => typeof row[column] === "number") ? "num" : "wide";
      return [said(column), kind, (row) => value(row[column])];
    });
    if (may("operate") && rows.some((row) => row._actions?.length))
      columns.push(["acts", "does", (row) => this.acts(path, row, () => this.paint(name, heading, path))]);
    put(body, resultOf(path), table(heading, columns, rows));
  }

  /** Buttons of a row. An act with `edit` opens a form with these fields in place of the buttons. */
  acts(path, row, again) {
    const key = JSON.stringify([path, row]);
    const root = h("div.acts");
    const done = (result) => {
      if (!result.ok) return;
      tell(path, result); // above the rows, for this one may be gone
      again();
    };
    const made = row._actions.map(({ label, words, path: to, body, confirm, edit, role }) => {
      if (!may(role ?? "operate")) return null;
      if (edit) {
        const opener = h("button", { type: "button", "data-key": key + label }, label);
        opener.addEventListener("click", () => this.edit(root, { label, to, body, edit, key, done, opener }));
        return opener;
      }
      const question = confirm === true ? `${label}? This cannot be undone.` : confirm;
      return button({ label, key, words, path: to, body, confirm: question, style: confirm ? "danger" : "", role, done });
    });
    root.append(...made.filter(Boolean), resultOf(key));
    return root;
  }

  edit(root, { label, to, body, edit, key, done, opener }) {
    const fields = Object.entries(edit).map(([name, text]) => [name, h("textarea", { rows: Math.min(12, String(text).split("\n").length + 1) }, String(text))]);
    const close = () => {
      form.replaceWith(...buttons);
      opener.focus();
    };
    const save = async (event) => {
      event.preventDefault();
      if (form.ariaBusy === "true") return;
      form.ariaBusy = "true";
      const result = await send(to, { ...body, ...Object.fromEntries(fields.map(([name, field]) => [name, field.value])) });
      form.ariaBusy = "false";
      if (result.ok) close();
      tell(key, result);
      done(result);
    };
    const buttons = [...root.children].filter((one) => one.matches("button"));
    const form = h(
      "form",
      { class: "editing", on: { submit: save, keydown: (event) => event.key === "Escape" && (event.stopPropagation(), close()) } },
      fields.map(([name, field]) => h("label", fields.length > 1 ? name : label, field)),
      h("button", { type: "submit", class: "strong" }, "Save"),
      h("button", { type: "button", on: { click: () => close() } }, "Cancel"),
    );
    form.ariaLabel = label;
    buttons[0].before(form);
    for (const one of buttons) one.remove();
    fields[0][1].focus();
  }

  /** Return the body of a panel, which is made at first. */
  body(name, heading, path) {
    if (!this.bodies.has(path)) {
      const id = `plugin-${name}-${this.bodies.size}`;
      const body = h("div", { class: "body scroll", tabindex: "0", role: "group", "aria-labelledby": `${id}-h` });
      const header = h("header", h("h3", { id: `${id}-h` }, said(heading)), h("span.chip.calm", said(name)), h("span.quiet"));
      (OF_AGENTS.includes(name) ? this.own : this.others).append(h("section", { id, class: "panel", "aria-labelledby": `${id}-h` }, header, body));
      this.bodies.set(path, body);
    }
    return this.bodies.get(path);
  }
}
