/** Health: channels, the processes that share a store, the outbox, and the alerts above all views. */

import { get } from "./api.js";
import { empty, h, panel, placed, put, quiet, said, show } from "./dom.js";
import { plural, since } from "./format.js";
import { state, table, toneOf } from "./tables.js";

export class Channels {
  /** `ready`: where readiness is told in a word; `alerts`: where is told what needs attention. */
  constructor(ready, alerts) {
    Object.assign(this, { ready, alerts, told: "", all: [], uncertain: 0, isReady: null });
    [this.list, this.processes, this.outbox] = [h("div"), h("div"), h("div.outbox")];
    this.body = [panel("Connections", this.list), this.processes, panel("Outbox and deliveries", this.outbox)];
  }

  async refresh() {
    this.all = (await get("/api/channels")).items;
    this.paint();
  }

  /** Handle a change of a channel. */
  take(one) {
    const known = this.all.find((other) => other.channel === one.channel);
    if (known) Object.assign(known, one);
    else this.all.push(one);
    this.paint();
  }

  /** Update from `/api/status`. */
  status({ ready, processes }) {
    this.isReady = ready;
    this.paint();
    if (!processes) return; // one process alone tells nothing
    const lag = processes.log_lag ? `${plural(processes.log_lag, "entry", "entries")} of the log behind` : "";
    const shown = [table("Processes", processes.processes), table("Leases", processes.leases.map((one) => ({ ...one, holder: one.holder || "nobody" })))];
    put(this.processes, panel("Processes", h("div", shown), quiet(lag)));
  }

  /** Load posts that wait, and the results of deliveries; uncertain ones stand first. */
  async loadOutbox() {
    const { waiting, deliveries } = await get("/api/outbox");
    const row = ({ at, conversation, outcome, reason }) => ({ at, to: placed(conversation), outcome, reason, _tone: outcome === "uncertain" && "bad" });
    const part = ({ index, state: now, attempts, reason }) =>
      h("li", `part ${index + 1}: `, state(now), attempts ? ` ${plural(attempts, "try", "tries")} ` : " ", said(reason));
    const post = ({ at, conversation, text, parts }) => ({ at, to: placed(conversation), text: said(text.slice(0, 300)), parts: h("ul", parts.map(part)) });
    const { true: uncertain = [], false: known = [] } = Object.groupBy(deliveries, (one) => one.outcome === "uncertain");
    this.uncertain = uncertain.length;
    put(
      this.outbox,
      waiting.length ? table("Waiting", waiting.map(post)) : empty("Nothing is waiting. Messages stay here until the platform has accepted them."),
      deliveries.length ? table("Deliveries", [...uncertain, ...known].map(row)) : empty("Nothing was delivered yet."),
    );
    this.paint();
  }

  paint() {
    put(this.list, this.all.length ? table("Channels", this.all.map(row)) : empty("No channel is configured."));
    this.alert();
    if (this.isReady === null) return;
    this.ready.className = `chip ${this.isReady ? "done" : "bad"}`;
    this.ready.title = this.all.filter((one) => one.state !== "up").map((one) => `${one.channel} is ${one.state}`).join("; ");
    this.ready.textContent = this.isReady ? "ready" : "not ready";
  }

  /** Show what needs attention. Unchanged alerts are left alone, because a screen reader would read them again. */
  alert() {
    const link = (...nodes) => h("a.alert", { href: "#channels" }, nodes);
    const links = this.all.filter((one) => toneOf(one.state) === "bad").map((one) => link(said(one.channel), ` is ${one.state} `, said(one.reason)));
    if (this.uncertain) links.push(link(`${plural(this.uncertain, "delivery is", "deliveries are")} uncertain: perhaps it arrived, perhaps not`));
    const words = links.map((one) => one.textContent).join("\n");
    if (this.told !== words) show(this.alerts, links);
    this.told = words;
  }
}

function row({ channel, state: now, since: at, reason, platform, holder, events, last_event, reconnects }) {
  const confirm = now === "up" && `Disconnect ${channel} and connect it again?`;
  return {
    channel,
    state: now,
    since: at,
    reason,
    platform,
    "held by": holder ?? "this process",
    events: Object.values(events ?? {}).reduce((sum, count) => sum + count, 0),
    "last event": last_event ? `${since(last_event)} ago` : "none yet",
    reconnects,
    _actions: [{ label: "Restart", words: ["restart", channel], confirm }],
  };
}
