/** The processes that share one store, and who holds which lease. Hidden where there is only one process. */

import { h, said } from "./dom.js";
import { plural, since, span, time } from "./format.js";
import { put, table } from "./tables.js";

const STATES = { running: "done", starting: "open", stopping: "open", "cut off": "bad" };

const seconds = (value) => (value === null ? "–" : value < 10 ? `${value.toFixed(1)} s` : span(value));

export class Processes {
  constructor(panel, root, count) {
    Object.assign(this, { panel, root, count });
  }

  /** `told`: of `/api/status`; null: there is only one process. */
  paint(told) {
    this.panel.hidden = !told;
    if (!told) return;
    const lag = told.log_lag === null ? "" : `, ${plural(told.log_lag, "entry", "entries")} of the log behind`;
    this.count.textContent = plural(told.processes.length, "process", "processes") + lag;
    put(
      this.root,
      table(
        "Processes",
        [
          ["process", "short", (one) => said(one.answers ? `${one.name} (this one)` : one.name)],
          ["state", "short", (one) => h("span", { class: `chip ${STATES[one.state] ?? "calm"}` }, one.state)],
          ["last sign", "num", (one) => seconds(one.age_s)],
          ["running for", "num", (one) => since(one.started)],
          ["holds", "wide", (one) => said(one.leases.join(", ") || "–")],
          ["host", "short", (one) => said(one.host)],
          ["address", "mono short", (one) => said(one.ops || "–")],
          ["version", "short", (one) => said(one.version)],
        ],
        told.processes,
      ),
      table(
        "Leases",
        [
          ["lease", "short", (one) => said(one.name)],
          ["holder", "short", (one) => (one.holder ? said(one.holder) : h("span", { class: "chip bad" }, "nobody"))],
          ["since", "at", (one) => (one.since === null ? "–" : time(one.since))],
        ],
        told.leases,
      ),
    );
  }
}
