/** Health: channels, the processes that share a store, the outbox, and the alerts above all views. */

import { buttons } from "./acts.js";
import { get } from "./api.js";
import { empty, h, placed, put, said, show } from "./dom.js";
import { plural, since, span, time } from "./format.js";
import { table } from "./tables.js";

const STATES = { up: "done", connecting: "open", down: "bad", refused: "bad" };
const PROCESSES = { running: "done", starting: "open", stopping: "open", "cut off": "bad" };
const DELIVERED = { sent: "done", uncertain: "bad", failed: "bad", waiting: "open", sending: "open" };

const chip = (state, tones) => h("span", { class: `chip ${tones[state] ?? "calm"}` }, state);

export class Channels {
  constructor(root) {
    Object.assign(this, { root, all: [] });
  }

  async refresh() {
    this.all = (await get("/api/channels")).items;
    this.paint();
  }

  take(one) {
    const at = this.all.findIndex((other) => other.channel === one.channel);
    if (at < 0) this.all.push(one);
    else this.all[at] = { ...this.all[at], ...one };
    this.paint();
  }

  paint() {
    if (!this.all.length)
      return show(this.root, empty("No channel is configured. New channels appear here with their state."));
    put(this.root, h("ul.health", this.all.map((one) => this.row(one))));
  }

  row(one) {
    const events = Object.values(one.events ?? {}).reduce((sum, count) => sum + count, 0);
    const last = one.last_event ? [", last ", h("span", { title: one.last_event }, since(one.last_event)), " ago"] : ", none yet";
    const restart = {
      label: "Restart",
      words: ["restart", one.channel],
      confirm: one.state === "up" ? `Disconnect ${one.channel} and connect it again?` : null,
    };
    return h(
      "li",
      { class: STATES[one.state] ?? "calm", "data-channel": one.channel },
      h("span", { class: "lamp", "aria-hidden": "true" }),
      said(one.channel, { class: "name" }),
      chip(one.state, STATES),
      h("span.quiet", "since ", time(one.since)),
      one.holder ? h("span.quiet", "held by ", said(one.holder)) : null,
      h("span.spring"),
      buttons(`restart ${one.channel}`, [restart]),
      one.reason ? h("p.reason", said(one.reason)) : null,
      h("p.quiet", said(one.platform), ` · ${plural(events, "event")}`, last, ` · ${plural(one.reconnects, "reconnect")}`),
    );
  }
}

const seconds = (value) => (value === null ? "–" : value < 10 ? `${value.toFixed(1)} s` : span(value));

/** Show the processes that share one store, and who holds which lease. `told`: null: there is only one process. */
export function processes(panel, told) {
  panel.hidden = !told;
  if (!told) return;
  const lag = told.log_lag === null ? "" : `, ${plural(told.log_lag, "entry", "entries")} of the log behind`;
  panel.querySelector("header .quiet").textContent = plural(told.processes.length, "process", "processes") + lag;
  const rows = [
    ["process", "short", (one) => said(one.answers ? `${one.name} (this one)` : one.name)],
    ["state", "short", (one) => chip(one.state, PROCESSES)],
    ["last sign", "num", (one) => seconds(one.age_s)],
    ["running for", "num", (one) => since(one.started)],
    ["holds", "wide", (one) => said(one.leases.join(", ") || "–")],
    ["host", "short", (one) => said(one.host)],
    ["address", "mono short", (one) => said(one.ops || "–")],
    ["version", "short", (one) => said(one.version)],
  ];
  const leases = [
    ["lease", "short", (one) => said(one.name)],
    ["holder", "short", (one) => (one.holder ? said(one.holder) : h("span.chip.bad", "nobody"))],
    ["since", "at", (one) => (one.since === null ? "–" : time(one.since))],
    ["free for", "num", (one) => seconds(one.free_s)],
  ];
  put(panel.querySelector(".body"), table("Processes", rows, told.processes), table("Leases", leases, told.leases));
}

/** Waiting posts and the results of deliveries; uncertain ones stand first. */
export class Outbox {
  constructor(root, count) {
    Object.assign(this, { root, count, uncertain: [] });
  }

  async refresh() {
    const { waiting, deliveries } = await get("/api/outbox");
    this.uncertain = deliveries.filter((one) => one.outcome === "uncertain");
    this.count.textContent = waiting.length ? `${waiting.length} waiting` : "";
    const sorted = [...this.uncertain, ...deliveries.filter((one) => one.outcome !== "uncertain")];
    const columns = [
      ["at", "at", (one) => time(one.at)],
      ["to", "short", (one) => placed(one.conversation)],
      ["outcome", "short", (one) => chip(one.outcome, DELIVERED)],
      ["reason", "wide", (one) => (one.reason ? said(one.reason) : "–")],
    ];
    const rows = sorted.map((one) => ({ ...one, tone: one.outcome === "uncertain" ? "alarming" : null }));
    put(
      this.root,
      h("h3", "Waiting"),
      waiting.length
        ? h("ul.posts", waiting.map((one) => this.post(one)))
        : empty("Nothing is waiting. Messages stay here until the platform has accepted them."),
      h("h3", "Deliveries"),
      deliveries.length ? table("Deliveries", columns, rows) : empty("Nothing was delivered yet."),
    );
  }

  post(one) {
    const part = ({ index, state, attempts, reason }) =>
      h("li", `part ${index + 1}: `, chip(state, DELIVERED), attempts ? ` ${plural(attempts, "try", "tries")}` : null, reason ? [", ", said(reason)] : null);
    return h("li", h("div.top", time(one.at), placed(one.conversation), said((one.text ?? "").slice(0, 300))),
      h("ul.parts", one.parts.map(part)),
    );
  }
}

/** Show what needs attention. Unchanged alerts are left alone, because a screen reader would read them again. */
export function alert(root, channels, uncertain) {
  const link = (...nodes) => h("a", { href: "#channels", class: "alert" }, nodes);
  const links = channels
    .filter((one) => STATES[one.state] === "bad")
    .map((one) => link(said(one.channel), ` is ${one.state}`, one.reason ? [": ", said(one.reason)] : null));
  if (uncertain.length)
    links.push(link(`${plural(uncertain.length, "delivery is", "deliveries are")} uncertain: ${uncertain.length === 1 ? "it" : "they"} may or may not have arrived`));
  const words = links.map((one) => one.textContent).join("\n");
  if (root.dataset.words === words) return;
  root.dataset.words = words;
  show(root, links);
}

/** Readiness in one word, with the reasons: the gateway is ready when every channel that may be connected is up. */
export function standing(root, ready, channels) {
  const reasons = channels.filter((one) => one.state !== "up").map((one) => `${one.channel} is ${one.state}`);
  const words = ready ? "ready" : "not ready";
  root.className = `chip ${ready ? "done" : "bad"}`;
  root.title = reasons.join("; ") || "every channel is up";
  if (root.textContent !== words) root.textContent = words;
}
