/** Health of all accounts. */

import { get } from "./api.js";
import { empty, h, said, show } from "./dom.js";
import { plural, since, time } from "./format.js";
import { put } from "./tables.js";

const STATES = { up: "done", connecting: "open", down: "bad", refused: "bad" };

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
    put(
      this.root,
      h(
        "ul",
        { class: "health" },
        this.all.map((one) => {
          const events = Object.values(one.events ?? {}).reduce((sum, count) => sum + count, 0);
          return h(
            "li",
            { class: STATES[one.state] ?? "calm", "data-channel": one.channel },
            h("span", { class: "lamp", "aria-hidden": "true" }),
            said(one.channel, { class: "name" }),
            h("span", { class: `chip ${STATES[one.state] ?? "calm"}` }, one.state),
            h("span", { class: "quiet" }, "since ", time(one.since)),
            one.holder ? h("span", { class: "quiet" }, "held by ", said(one.holder)) : null,
            one.reason ? h("p", { class: "reason" }, said(one.reason)) : null,
            h(
              "p",
              { class: "quiet" },
              said(one.platform),
              ` · ${plural(events, "event")}`,
              one.last_event
                ? [", last ", h("span", { title: one.last_event }, since(one.last_event)), " ago"]
                : ", none yet",
              ` · ${plural(one.reconnects, "reconnect")}`,
            ),
          );
        }),
      ),
    );
  }
}
