/** State of each agent's DMN: now, over a day, and what runs. */

import { get } from "./api.js";
import { empty, h, placed, s, said, show } from "./dom.js";
import { day, dollars, hour, now as clock, plural, since, span, time } from "./format.js";
import { timeTicks } from "./plot.js";

const MODES = ["engaged", "working", "foraging", "dreaming", "resting", "stored", "paused", "off"];
const HOURS = 24;
const KEPT_CHARS = 400;
const MOST_STATES = 2_000;

/** Merge states `[{at, mode}]`, oldest first, into periods of one mode. */
export function stretches(states, from, to) {
  const found = [];
  for (const { at, mode } of states) {
    const begin = Math.max(from, Math.min(to, Date.parse(at)));
    const last = found.at(-1);
    if (last?.mode === mode) continue;
    if (last) last.to = begin;
    found.push({ mode, from: begin, to });
  }
  return found.filter((one) => one.to > one.from);
}

export class Agents {
  constructor(root) {
    Object.assign(this, { root, seen: new Map(), states: new Map(), turns: new Map(), read_ms: 0, dirty: false });
    this.width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.round(entry.contentRect.width) === this.width) return;
      this.width = Math.round(entry.contentRect.width);
      requestAnimationFrame(() => this.paint());
    }).observe(root);
  }

  /** Update from `/api/status`. */
  status({ agents, activity }) {
    this.read_ms = clock();
    this.seen = new Map(agents.map((one) => [one.agent, one]));
    const old = this.turns;
    this.turns = new Map(activity.map((one) => [one.turn, { ...one, tool: one.tools.at(-1), tail: old.get(one.turn)?.tail ?? "" }]));
    this.paint();
  }

  async history() {
    const { items: states } = await get("/api/dmn/history", { hours: HOURS });
    this.states = new Map();
    for (const one of states) this.remember(one);
    this.paint();
  }

  remember({ agent, at, mode }) {
    const list = this.states.get(agent) ?? [];
    if (list.at(-1)?.mode !== mode) list.push({ at, mode });
    if (list.length > MOST_STATES) list.splice(0, MOST_STATES / 2);
    this.states.set(agent, list);
  }

  /** Handle an event about agents or turns. */
  take(type, body) {
    if (type === "dmn") {
      this.remember(body);
      this.seen.set(body.agent, body);
      this.read_ms = clock();
    } else if (type === "turn" && body.state === "ended") this.turns.delete(body.turn);
    else {
      const turn = this.turns.get(body.turn) ?? { ...body, tail: "" };
      if (type === "tool") turn.tool = body.state === "started" ? body.name : null;
      if (type === "text") turn.tail = ((body.begins ? "" : turn.tail) + body.delta).slice(-KEPT_CHARS);
      this.turns.set(body.turn, turn);
    }
    if (this.dirty) return;
    this.dirty = true;
    setTimeout(() => requestAnimationFrame(() => this.paint()), 200);
  }

  paint() {
    this.dirty = false;
    if (!this.seen.size) return show(this.root, empty("No agent is configured."));
    const now = clock();
    show(
      this.root,
      [...this.seen.values()].map((one) => this.agent(one, now)),
    );
    this.tick();
  }

  agent(one, now) {
    const wants = one.wanted.map((wish) => h("li", {}, placed(wish.conversation), ` (${wish.why})`));
    const until = one.stored_until ?? one.quiet_until;
    const limits = [
      [
        "turns on its own today",
        `${one.turns_today} of ${one.daily_turns}`,
        one.daily_turns ? one.turns_today / one.daily_turns : 0,
      ],
      [
        "spent on them",
        `${dollars(one.spent_today_usd)} of ${dollars(one.daily_cost_usd)}`,
        one.daily_cost_usd ? one.spent_today_usd / one.daily_cost_usd : 0,
      ],
      ["in a row", `${one.in_a_row} of ${one.max_in_a_row}`, one.max_in_a_row ? one.in_a_row / one.max_in_a_row : 0],
    ];
    return h(
      "article",
      { class: "agent", "data-agent": one.agent, "aria-label": one.agent },
      h(
        "h3",
        {},
        said(one.agent),
        h("span", { class: `mode m-${one.mode}` }, one.mode),
        one.quiet ? h("span", { class: "chip open" }, "quiet") : null,
        h("span", { class: "spring" }),
        h(
          "span",
          { class: "quiet next", "data-next": one.next_tick_s === null ? null : this.read_ms + one.next_tick_s * 1000 },
          one.next_tick_s === null ? "no check is planned" : "",
        ),
      ),
      this.band(one.agent, now),
      h(
        "div",
        { class: "limits" },
        limits.map(([what, value, part]) =>
          h(
            "div",
            { class: part >= 1 ? "limit full" : "limit" },
            h("span", { class: "what" }, what),
            h("span", { class: "value" }, value),
            h("span", { class: "meter", style: { "--part": String(Math.min(1, part)) } }),
          ),
        ),
      ),
      h(
        "dl",
        { class: "facts" },
        h("dt", {}, "by itself"),
        h(
          "dd",
          {},
          one.held.length ? one.held.map((why) => h("div", { class: "held" }, said(why))) : "it may start a turn",
        ),
        wants.length ? [h("dt", {}, "would look at"), h("dd", {}, h("ul", {}, wants))] : null,
        one.waiting.length
          ? [
              h("dt", {}, "is waiting"),
              h(
                "dd",
                {},
                one.waiting.map((place) => h("div", {}, placed(place))),
              ),
            ]
          : null,
        until ? [h("dt", {}, one.mode === "stored" ? "asleep until" : "quiet until"), h("dd", {}, time(until))] : null,
        one.wake_on.length ? [h("dt", {}, "wakes on"), h("dd", {}, said(one.wake_on.join(", ")))] : null,
        one.errors ? [h("dt", {}, "failed in a row"), h("dd", { class: "warn" }, String(one.errors))] : null,
        h("dt", {}, "people are"),
        h("dd", {}, one.presence),
      ),
      this.running(one.agent),
    );
  }

  running(agent) {
    const turns = [...this.turns.values()].filter((turn) => turn.agent === agent);
    if (!turns.length) return h("p", { class: "quiet running" }, "no turn runs");
    return h(
      "ul",
      { class: "running" },
      turns.map((turn) =>
        h(
          "li",
          {},
          h("span", { class: "spin", "aria-hidden": "true" }),
          placed(turn.conversation),
          h("span", { class: "quiet", "data-since": turn.at }, since(turn.at)),
          turn.tool ? h("span", { class: "chip open" }, said(turn.tool)) : null,
          turn.tail ? h("p", { class: "tail" }, said(turn.tail)) : null,
        ),
      ),
    );
  }

  band(agent, now) {
    const from = now - HOURS * 3_600_000;
    const parts = stretches(this.states.get(agent) ?? [], from, now);
    if (!parts.length) return empty("Its states over the day will appear here.");
    const wide = Math.max(120, this.width - 24);
    const x = (ms) => ((ms - from) / (now - from)) * wide;
    const total = new Map();
    for (const one of parts) total.set(one.mode, (total.get(one.mode) ?? 0) + one.to - one.from);
    const rects = parts.map((one) =>
      s(
        "rect",
        { class: `m-${one.mode}`, x: x(one.from), width: Math.max(0.75, x(one.to) - x(one.from)), y: 0, height: 22 },
        s(
          "title",
          {},
          `${one.mode}: ${day(one.from)} ${hour(one.from)} to ${hour(one.to)}, ${span((one.to - one.from) / 1000)}`,
        ),
      ),
    );
    const ticks = timeTicks(from, now, Math.max(2, wide / 70))
      .filter(([at]) => x(at) > 14 && x(at) < wide - 14)
      .map(([at, words]) => s("text", { x: x(at), y: 36, "text-anchor": "middle" }, words));
    const told = MODES.filter((mode) => total.has(mode)).map((mode) => [mode, span(total.get(mode) / 1000)]);
    return h(
      "div",
      { class: "band" },
      s(
        "svg",
        {
          width: wide,
          height: 40,
          viewBox: `0 0 ${wide} 40`,
          role: "img",
          "aria-label": `${agent} in the last ${plural(HOURS, "hour")}: ${told.map((one) => one.join(" ")).join(", ")}`,
        },
        rects,
        ticks,
      ),
      h(
        "ul",
        { class: "modes" },
        told.map(([mode, took]) => h("li", {}, h("i", { class: `swatch m-${mode}` }), mode, h("b", {}, took))),
      ),
    );
  }

  /** Update the countdowns, once a second. */
  tick() {
    const now = clock();
    for (const one of this.root.querySelectorAll("[data-next]")) {
      const left = (Number(one.dataset.next) - now) / 1000;
      const words = left > 0 ? `checks again in ${span(left)}` : "checks again now";
      if (one.textContent !== words) one.textContent = words;
    }
    for (const one of this.root.querySelectorAll("[data-since]")) one.textContent = since(one.dataset.since);
  }
}
