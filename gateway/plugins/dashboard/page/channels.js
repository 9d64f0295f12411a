/** Health: channels, the processes that share a store, the outbox, and the alerts above all views. */

import { get } from "./api.js";
import { chip, h, panel, placed, put, quiet, said } from "./dom.js";
import { plural, since } from "./format.js";
import { state, table, toneOf } from "./tables.js";

export class Channels {
  /** `ready`: where readiness is told in a word; `alerts`: where is told what needs attention. */
  constructor(ready, alerts) {
    Object.assign(this, { name: "channels", title: "Channels", always: true, ready, alerts, all: [], uncertain: 0 });
    [this.list, this.processes, this.outbox] = [h("div"), h("div"), h("div.outbox")];
    this.body = [panel("Connections", this.list), this.processes, panel("Outbox and deliveries", this.outbox)];
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
    put(this.ready, chip(ready ? "ready" : "not ready", ready ? "done" : "bad"));
    if (!processes) return; // one process alone tells nothing
    const lag = processes.log_lag ? `${plural(processes.log_lag, "entry", "entries")} of the log behind` : "";
    const shown = [table("Processes", processes.processes), table("Leases", processes.leases.map((one) => ({ ...one, holder: one.holder || "nobody" })))];
    put(this.processes, panel("Processes", h("div", shown), quiet(lag)));
  }

  /** Load channels, posts that wait, and the results of deliveries; uncertain ones stand first. */
  async load() {
    const [{ items }, { waiting, deliveries }] = await Promise.all([get("/api/channels"), get("/api/outbox")]);
    const row = (one) => ({ at: one.at, to: placed(one), outcome: one.outcome, reason: one.reason, _tone: one.outcome === "uncertain" && "bad" });
    const part = ({ index, state: now, attempts, reason }) =>
      h("li", `part ${index + 1}: `, state(now), attempts ? ` ${plural(attempts, "try", "tries")} ` : " ", said(reason));
    const post = (one) => ({ at: one.at, to: placed(one), text: said(one.text.slice(0, 300)), parts: h("ul", one.parts.map(part)) });
    const { true: uncertain = [], false: known = [] } = Object.groupBy(deliveries, (one) => one.outcome === "uncertain");
    Object.assign(this, { all: items, uncertain: uncertain.length });
    put(
      this.outbox,
      table("Waiting", waiting.map(post), "Nothing is waiting. Messages stay here until the platform has accepted them."),
      table("Deliveries", [...uncertain, ...known].map(row), "Nothing was delivered yet."),
    );
    this.paint();
  }

  paint() {
    put(this.list, table("Channels", this.all.map(row), "No channel is configured."));
    const link = (...nodes) => h("a.alert.bad", { href: "#channels" }, nodes);
    const broken = this.all.filter((one) => toneOf(one.state) === "bad");
    put(
      this.alerts, // what is unchanged is left alone: a screen reader would read it again
      broken.map((one) => link(said(one.channel), ` is ${one.state} `, said(one.reason))),
      this.uncertain ? link(`${plural(this.uncertain, "delivery is", "deliveries are")} uncertain: perhaps it arrived, perhaps not`) : null,
    );
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
