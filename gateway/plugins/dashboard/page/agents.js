/** State of each agent's DMN: now, over a day, what runs, and buttons that direct it. */

import { button, buttons, choice, order, resultOf } from "./acts.js";
import { get, may } from "./api.js";
import { empty, h, placed, put, s, said } from "./dom.js";
import { day, dollars, hour, now as clock, plural, since, span, time } from "./format.js";
import { timeTicks } from "./plot.js";

/** Modes, and what they mean. */
const MODES = {
  engaged: "a person talks with it",
  working: "it works on its own",
  foraging: "it looks for something to do",
  dreaming: "it writes down what it learned",
  resting: "it waits",
  stored: "asleep until it is woken",
  paused: "does nothing unless asked",
  off: "never acts on its own",
};
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
  constructor(root, running) {
    Object.assign(this, { root, running, seen: new Map(), states: new Map(), turns: new Map(), models: [], read_ms: 0, width: 0 });
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

  /** Load the models that can be chosen. */
  async loadModels() {
    this.models = (await get("/api/models")).items;
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
    this.timer ??= setTimeout(() => requestAnimationFrame(() => this.paint()), 200);
  }

  /** Return the turn that runs in a conversation, if one does. */
  turnIn = (id) => [...this.turns.values()].find((one) => one.conversation === id);

  paint() {
    this.timer = null;
    const turns = [...this.turns.values()];
    put(this.running, turns.length ? h("ul.running", turns.map((turn) => this.turn(turn))) : empty("No turn runs."));
    const now = clock();
    if (this.root.contains(document.activeElement) && document.activeElement.matches("select, input")) return this.tick();
    put(this.root, this.seen.size ? [...this.seen.values()].map((one) => this.agent(one, now)) : empty("No agent is configured."));
    this.tick();
  }

  turn(turn) {
    return h("li", h("span", { class: "spin", "aria-hidden": "true" }),
      placed(turn.conversation),
      h("span", { class: "quiet", "data-since": turn.at }, since(turn.at)),
      turn.tool ? h("span.chip.open", said(turn.tool)) : null,
      h("span.spring"),
      buttons(`stop ${turn.turn}`, [{ label: "Stop", words: ["stop"], about: { place: turn.conversation } }]),
      turn.tail ? h("p.tail", said(turn.tail)) : null,
    );
  }

  agent(one, now) {
    const until = one.stored_until ?? one.quiet_until;
    const limits = [
      ["turns on its own today", `${one.turns_today} of ${one.daily_turns}`, one.turns_today / (one.daily_turns || Infinity)],
      ["spent on them", `${dollars(one.spent_today_usd)} of ${dollars(one.daily_cost_usd)}`, one.spent_today_usd / (one.daily_cost_usd || Infinity)],
      ["in a row", `${one.in_a_row} of ${one.max_in_a_row}`, one.in_a_row / (one.max_in_a_row || Infinity)],
    ].map(([what, value, part]) =>
      h(
        "div",
        { class: part >= 1 ? "limit full" : "limit" },
        h("span.what", what),
        h("span.value", value),
        h("span", { class: "meter", style: { "--part": Math.min(1, part) } }),
      ),
    );
    const pair = (name, ...value) => [h("dt", name), h("dd", value)];
    const each = (places, words) => places.map((place) => h("div", words(place)));
    return h(
      "article",
      { class: "agent", "data-agent": one.agent, "aria-label": one.agent },
      h("h3", said(one.agent),
        h("span", { class: `mode m-${one.mode}`, title: MODES[one.mode] ?? "" }, one.mode),
        one.quiet ? h("span.chip.open", "quiet") : null,
        h("span.quiet", MODES[one.mode] ?? ""),
        h("span.spring"),
        h("span", { class: "quiet next", "data-next": one.next_tick_s === null ? null : this.read_ms + one.next_tick_s * 1000 }),
      ),
      this.acts(one),
      this.band(one.agent, now),
      h("div.limits", limits),
      h(
        "dl.facts",
        pair("on its own", one.held.length ? each(one.held, (why) => h("span.held", said(why))) : "it may start a turn"),
        one.wanted.length ? pair("would look at", each(one.wanted, (wish) => [placed(wish.conversation), ` (${wish.why})`])) : null,
        one.waiting.length ? pair("waits for a turn", each(one.waiting, (place) => placed(place))) : null,
        until ? pair(one.mode === "stored" ? "asleep until" : "quiet until", time(until)) : null,
        one.wake_on.length ? pair("wakes on", said(one.wake_on.join(", "))) : null,
        one.errors ? pair("failed in a row", h("b.warn", String(one.errors))) : null,
        pair("people are", one.presence),
      ),
    );
  }

  /** Buttons that direct an agent. */
  acts(one) {
    if (!may("operate")) return null;
    const [key, about] = [`dmn ${one.agent}`, { agent: one.agent }];
    const act = (label, words, more) => button({ label, key, words: ["dmn", ...words], about, ...more });
    const rests = one.quiet || ["paused", "stored"].includes(one.mode);
    return h(
      "div.acts",
      rests ? act("Wake up", ["wake"], { style: "strong", title: "Continue after a pause, a rest or quiet" }) : null,
      one.mode === "paused" ? null : act("Pause", ["pause"], { title: "Do nothing without being asked, until it is woken" }),
      one.quiet ? null : act("Quiet for an hour", ["quiet"], { title: "Say nothing without being asked, for an hour" }),
      act("Turn off", ["off"], { title: "Never act without being asked, also after a restart", confirm: `Turn off what ${one.agent} does on its own, also after a restart?` }),
      this.model(one.agent, key),
      resultOf(key),
    );
  }

  /** A choice of the agent's model. */
  model(agent, key) {
    if (!this.models.length) return null;
    const used = this.models.find((one) => one.agents.includes(agent))?.name;
    const names = this.models.map((one) => one.name);
    const run = (name) => order(["model", "switch", name], { agent });
    return choice({ label: `Model of ${agent}`, names, used, act: "Use this model", key, run, done: () => this.loadModels() });
  }

  band(agent, now) {
    const from = now - HOURS * 3_600_000;
    const parts = stretches(this.states.get(agent) ?? [], from, now);
    if (!parts.length) return empty("Its states over the day will appear here.");
    const wide = Math.max(120, this.width - 32);
    const x = (ms) => ((ms - from) / (now - from)) * wide;
    const total = new Map();
    for (const one of parts) total.set(one.mode, (total.get(one.mode) ?? 0) + one.to - one.from);
    const rects = parts.map((one) =>
      s(
        "rect",
        { class: `m-${one.mode}`, x: x(one.from), width: Math.max(0.75, x(one.to) - x(one.from)), y: 0, height: 22 },
        s("title", {}, `${one.mode}: ${day(one.from)} ${hour(one.from)} to ${hour(one.to)}, ${span((one.to - one.from) / 1000)}`),
      ),
    );
    const ticks = timeTicks(from, now, Math.max(2, wide / 70))
      .filter(([at]) => x(at) > 14 && x(at) < wide - 14)
      .map(([at, words]) => s("text", { x: x(at), y: 36, "text-anchor": "middle" }, words));
    const told = Object.keys(MODES).filter((mode) => total.has(mode)).map((mode) => [mode, span(total.get(mode) / 1000)]);
    const label = `${agent} in the last ${plural(HOURS, "hour")}: ${told.map((one) => one.join(" ")).join(", ")}`;
    return h(
      "div.band",
      s("svg", { width: wide, height: 40, viewBox: `0 0 ${wide} 40`, role: "img", "aria-label": label }, rects, ticks),
      h("ul.modes", told.map(([mode, took]) => h("li", { title: MODES[mode] }, h("i", { class: `swatch m-${mode}` }), mode, h("b", took)))),
    );
  }

  /** Update the countdowns, once a second. */
  tick() {
    const now = clock();
    for (const one of this.root.querySelectorAll(".next")) {
      const left = (Number(one.dataset.next) - now) / 1000;
      const words = !one.dataset.next ? "no check is planned" : left > 0 ? `checks again in ${span(left)}` : "checks again now";
      if (one.textContent !== words) one.textContent = words;
    }
    for (const one of document.querySelectorAll("[data-since]")) one.textContent = since(one.dataset.since);
  }
}
