/** Waiting posts and the results of deliveries; uncertain ones stand first. */

import { get } from "./api.js";
import { empty, h, placed, said } from "./dom.js";
import { plural, time } from "./format.js";
import { put, table } from "./tables.js";

const DELIVERED = { sent: "done", uncertain: "bad", failed: "bad", waiting: "open", sending: "open" };

export class Outbox {
  constructor(root, count) {
    Object.assign(this, { root, count, uncertain: [] });
  }

  async refresh() {
    const { waiting, deliveries } = await get("/api/outbox");
    this.uncertain = deliveries.filter((one) => one.outcome === "uncertain");
    this.count.textContent = waiting.length ? `${waiting.length} waiting` : "";
    const sorted = [...this.uncertain, ...deliveries.filter((one) => one.outcome !== "uncertain")];
    put(
      this.root,
      h("h3", {}, "Waiting"),
      waiting.length
        ? h(
            "ul",
            { class: "waiting" },
            waiting.map((one) =>
              h(
                "li",
                {},
                h(
                  "div",
                  {},
                  time(one.at),
                  placed(one.conversation),
                  said((one.text ?? "").slice(0, 300), { class: "text" }),
                ),
                h(
                  "ul",
                  { class: "parts" },
                  one.parts.map((part) =>
                    h(
                      "li",
                      { class: DELIVERED[part.state] ?? "calm" },
                      `part ${part.index + 1}: `,
                      h("span", { class: `chip ${DELIVERED[part.state] ?? "calm"}` }, part.state),
                      part.attempts ? ` ${plural(part.attempts, "try", "tries")}` : null,
                      part.reason ? [", ", said(part.reason)] : null,
                    ),
                  ),
                ),
              ),
            ),
          )
        : empty("Nothing is waiting. Messages stay here until the platform has accepted them."),
      h("h3", {}, "Deliveries"),
      deliveries.length
        ? table(
            "Deliveries",
            [
              ["at", "at", (one) => time(one.at)],
              ["to", "short", (one) => placed(one.conversation)],
              [
                "outcome",
                "short",
                (one) => h("span", { class: `chip ${DELIVERED[one.outcome] ?? "calm"}` }, one.outcome),
              ],
              ["reason", "wide", (one) => (one.reason ? said(one.reason) : "–")],
            ],
            sorted.map((one) => ({ ...one, tone: one.outcome === "uncertain" ? "alarming" : null })),
          )
        : empty("Nothing was delivered yet."),
    );
  }
}
