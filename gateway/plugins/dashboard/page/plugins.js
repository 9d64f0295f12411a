/** Plugins: what is in use, and their panels: tables whose rows may have buttons. */

import { get } from "./api.js";
import { chip, h, panel, put, quiet, said } from "./dom.js";
import { plural } from "./format.js";
import { table } from "./tables.js";

/** Plugins whose panels belong to the view of the agent. */
const OF_AGENTS = ["reminders", "journal", "memory", "skills", "intentions"];

export class Plugins {
  /** `own`: where panels of agents are shown. */
  constructor(own) {
    Object.assign(this, { name: "plugins", title: "Plugins", also: ["agent"], own, body: h("div.panels") });
  }

  async load() {
    const { items } = await get("/api/plugins");
    const paths = items.flatMap(({ name, panels }) => Object.entries(panels).map(([heading, path]) => [name, heading, path]));
    const panels = (await Promise.all(paths.map((one) => load(...one, () => this.load())))).filter(Boolean);
    const rows = items.map(({ name, summary, problem }) => ({ plugin: name, "what it does": summary, "last problem": problem }));
    put(this.own, panels.filter((one) => OF_AGENTS.includes(one.plugin)));
    put(this.body, panel("In use", table("Plugins", rows)), panels.filter((one) => !OF_AGENTS.includes(one.plugin)));
  }
}

/** Return a panel; null: the role may not read it. */
async function load(plugin, heading, path, again) {
  let [rows, body] = [[], null];
  try {
    rows = await get(path);
    body = table(heading, rows, "There is nothing yet.", again);
  } catch (error) {
    if (error.status === 401 || !error.status) throw error;
    if (error.status === 403 || error.status === 404) return null;
    body = h("p.empty.bad", said(error.message));
  }
  const node = panel(heading, body, [chip(said(plugin)), rows.length ? quiet(plural(rows.length, "entry", "entries")) : null]);
  return Object.assign(node, { key: path, plugin });
}
