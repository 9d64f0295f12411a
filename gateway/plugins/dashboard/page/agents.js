/** State of each agent's DMN: now, over a day, what runs, and buttons that direct it. */

import { acts, choice } from "./acts.js";
import { get } from "./api.js";
import { chip, empty, h, placed, put, quiet, said } from "./dom.js";
import { dollars, hour, now as clock, since, span } from "./format.js";
import { facts } from "./tables.js";

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
const DAY_MS = 86_400_000;
/** Longest end of a text that is being written. */
const KEPT_CHARS = 400;
/** Milliseconds between two updates of the DOM. */
const EVERY_MS = 200;

/** Return the periods of the modes `[{at, mode}]`, oldest first, up to now. */
const periods = (states, from, to) => {
  const begins = states.map((one) => Math.max(from, Date.parse(one.at)));
  return states.map(({ mode }, index) => ({ mode, from: begins[index], to: begins[index + 1] ?? to }));
};

export class Agents {
  name = "agent";
  title = "Agent and memory";
  hint = "What it does on its own, and what it keeps.";
  also = ["conversations"];
  list = h("div.panel");
  panels = h("div.panels");
  running = h("div");
  body = [this.list, this.panels];
  seen = new Map();
  states = [];
  turns = new Map();
  models = [];
  read_ms = 0;
  timer = null;

  /** Update from `/api/status`. */
  status({ agents, activity }) {
    this.read_ms = clock();
    this.seen = new Map(agents.map((one) => [one.agent, one]));
    const old = this.turns;
    this.turns = new Map(activity.map((one) => [one.turn, { ...one, tool: one.tools.at(-1), tail: old.get(one.turn)?.tail ?? "" }]));
    this.paint();
  }

  /** Load the modes of the day, and the models that can be chosen. */
  async load() {
    const [history, models] = await Promise.all([get("/api/dmn/history", { hours: 24 }), get("/api/models")]);
    Object.assign(this, { states: history.items, models: models.items });
    this.paint();
  }

  /** Handle an event. Return whether it is about a turn. */
  take(type, body) {
    if (type === "dmn") {
      this.seen.set(body.agent, body);
      this.read_ms = clock();
    } else if (!body.turn) return false;
    else if (body.state === "ended" && type === "turn") this.turns.delete(body.turn);
    else {
      const turn = this.turns.get(body.turn) ?? { ...body, tail: "" };
      if (type === "tool") turn.tool = body.state === "started" ? body.name : null;
      if (type === "text") turn.tail = ((body.begins ? "" : turn.tail) + body.delta).slice(-KEPT_CHARS);
      this.turns.set(body.turn, turn);
    }
    this.timer ??= setTimeout(() => this.paint(), EVERY_MS);
    return true;
  }

  /** Return the turn that runs in a conversation, if one does. */
  turnIn = (id) => [...this.turns.values()].find((one) => one.conversation === id);

  paint() {
    this.timer = null;
    const [turns, agents] = [[...this.turns.values()], [...this.seen.values()]];
    put(this.running, turns.length ? h("ul.running", turns.map((one) => h("li", { key: one.turn }, describe(one)))) : empty("No turn runs."));
    put(this.list, agents.length ? agents.map((one) => this.agent(one)) : empty("No agent is configured."));
  }

  agent(one) {
    const each = (all, words) => (all.length ? h("div", all.map((item) => h("div", words(item)))) : null);
    return h(
      "article.agent",
      { key: one.agent, "aria-label": one.agent },
      h(
        "h3",
        said(one.agent),
        h("span.mode", { class: one.mode }, one.mode),
        one.quiet ? chip("quiet", "open") : null,
        quiet(MODES[one.mode]),
        h("span.spring"),
        quiet(this.nextTick(one)),
      ),
      this.acts(one),
      this.band(one.agent),
      facts({
        "turns on its own today": `${one.turns_today} of ${one.daily_turns}`,
        "spent on them": `${dollars(one.spent_today_usd)} of ${dollars(one.daily_cost_usd)}`,
        "in a row": `${one.in_a_row} of ${one.max_in_a_row}`,
        "on its own": each(one.held, (why) => h("span.held", said(why))) ?? "it may start a turn",
        "would look at": each(one.wanted, (wish) => said(`${wish.conversation} (${wish.why})`)),
        "waits for a turn": each(one.waiting, (place) => said(place)),
        [one.mode === "stored" ? "asleep until" : "quiet until"]: one.stored_until ?? one.quiet_until,
        "wakes on": one.wake_on,
        "failed in a row": one.errors || null,
        "people are": one.presence,
      }),
    );
  }

  nextTick({ next_tick_s }) {
    if (next_tick_s === null) return "no check is planned";
    const left_s = next_tick_s - (clock() - this.read_ms) / 1000;
    return left_s > 0 ? `checks again in ${span(left_s)}` : "checks again now";
  }

  /** Buttons that direct an agent. */
  acts({ agent, mode, quiet: isQuiet }) {
    const dmn = (label, word, more) => ({ label, words: ["dmn", word], agent, ...more });
    const rests = isQuiet || mode === "paused" || mode === "stored";
    return acts(
      rests && dmn("Wake up", "wake", { style: "yes", title: "Continue after a pause, a rest or quiet" }),
      mode !== "paused" && dmn("Pause", "pause", { title: "Do nothing without being asked, until it is woken" }),
      !isQuiet && dmn("Quiet for an hour", "quiet", { title: "Say nothing without being asked, for an hour" }),
      dmn("Turn off", "off", { confirm: `Turn off what ${agent} does on its own, also after a restart?` }),
      choice({
        label: `Model of ${agent}`,
        names: this.models.map((one) => one.name),
        used: this.models.find((one) => one.agents.includes(agent))?.name,
        press: "Use this model",
        words: ["model", "switch"],
        agent,
        done: () => this.load(),
      }),
    );
  }

  /** The modes of the last 24 hours as a band, with their sums. */
  band(agent) {
    const to = clock();
    const from = to - DAY_MS;
    const parts = periods(this.states.filter((one) => one.agent === agent), from, to);
    if (!parts.length) return h("p.quiet", "Its states over the day will appear here.");
    const total = (mode) => span(parts.reduce((sum, one) => sum + (one.mode === mode ? one.to - one.from : 0), 0) / 1000);
    const sums = Object.keys(MODES).filter((mode) => parts.some((one) => one.mode === mode)).map((mode) => [mode, total(mode)]);
    const part = (one) => h(`i.${one.mode}`, { style: { "flex-grow": one.to - one.from }, title: `${one.mode}: ${hour(one.from)} to ${hour(one.to)}` });
    const ticks = [0, 1, 2, 3, 4, 5].map((index) => from + (index * DAY_MS) / 6);
    return h(
      "div.band",
      h(
        "div.periods",
        { role: "img", "aria-label": `${agent} in the last 24 hours: ${sums.flat().join(" ")}` },
        h("i", { style: { "flex-grow": parts[0].from - from } }),
        parts.map(part),
      ),
      h("div.ticks", { "aria-hidden": "true" }, ticks.map((at) => h("span", hour(at)))),
      h("ul.key3", sums.map(([mode, took]) => h("li", h("i", { class: mode }), ` ${mode} `, h("b", took)))),
    );
  }
}

/** Return a turn that runs, with what it has written so far, and a button that stops it. */
export const describe = (turn) => [
  h("span.spin", { "aria-hidden": "true" }),
  placed(turn),
  quiet(since(turn.at)),
  turn.tool ? chip(said(turn.tool), "open") : null,
  acts({ label: "Stop", words: ["stop"], place: turn.conversation, title: "Stop what the agent is doing there" }),
  turn.tail ? h("p.tail", said(turn.tail)) : null,
];
