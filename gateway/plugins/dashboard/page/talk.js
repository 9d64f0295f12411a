/** One conversation: its last messages, a field to answer, and the last prompt. */

import { buttons, choice, order, resultOf, send, tell } from "./acts.js";
import { get, may } from "./api.js";
import { empty, h, placed, put, said, show, titleOf } from "./dom.js";
import { plural, time } from "./format.js";
import { chip } from "./legend.js";
import { markdown } from "./markdown.js";
import { prompt } from "./prompt.js";

/** The operator's own conversation with the agent. */
export const OPERATOR = "console/operator";

export class Talk {
  /**
   * `close`: called by the button that closes it; null: it has none. `running(id)`: the turn that runs there.
   * `models()`: names of the models.
   */
  constructor(root, { close = null, running, models }) {
    Object.assign(this, { root, close, running, models, id: null, asked: 0, seen: "" });
  }

  get isOperator() {
    return this.id === OPERATOR;
  }

  /** Show a conversation. `focus`: move the focus to its heading. */
  async open(id, focus = false) {
    if (id !== this.id) {
      this.id = id;
      this.seen = "";
      this.frame();
    }
    await this.load(true);
    if (focus) this.root.querySelector("h3")?.focus({ preventScroll: true });
  }

  frame() {
    this.heading = h("header.opened-head");
    this.log = h("div", { class: "talk scroll", tabindex: 0, role: "log", "aria-live": this.isOperator ? "polite" : "off" });
    this.now = h("div.now");
    this.prompt = h("div.last-prompt.scroll");
    show(
      this.root,
      this.heading,
      h("div.said", this.log, this.now, this.answering()),
      this.isOperator ? null : this.prompt,
    );
  }

  /** The field to write in. */
  answering() {
    if (!may("operate")) return null;
    const label = this.isOperator ? "Write to the agent, or a command that begins with /" : "Answer here, in the agent's name";
    const [key, id] = [`answer ${this.id}`, this.id];
    const text = h("textarea", { rows: 2, "aria-label": label, placeholder: label, maxlength: 16_000 });
    const write = h("button", { type: "submit", class: "strong" }, "Send");
    const go = async (event) => {
      event.preventDefault();
      const words = text.value.trim();
      if (!words || write.disabled) return;
      write.disabled = true;
      const result = await (this.isOperator ? send("/api/say", { text: words }) : order(["say", id, words]));
      write.disabled = false;
      if (result.ok) text.value = "";
      tell(key, this.isOperator && result.ok ? { ok: true, text: "" } : result);
      await this.load(true).catch(() => {});
    };
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      go(event);
    });
    return h("form", { class: "reply", on: { submit: go } }, text, write, resultOf(key));
  }

  /** Load the conversation again. Expanded parts stay expanded, and what is being written stays. */
  async load(follow = false) {
    const id = this.id;
    if (!id) return;
    const asked = ++this.asked;
    let answer = null;
    try {
      answer = await get("/api/conversation", { id });
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    if (asked !== this.asked || id !== this.id) return;
    this.head(answer);
    const messages = answer?.messages ?? [];
    const seen = JSON.stringify(messages.map((one) => [one.seq, one.fate]));
    if (seen !== this.seen || !this.log.hasChildNodes()) {
      this.seen = seen;
      const follows = follow || this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
      this.log.ariaLabel = `The last ${plural(messages.length, "message")}`;
      show(this.log, messages.length ? messages.map((one) => this.line(one, answer.agent)) : this.nothing(answer));
      if (follows) this.log.scrollTop = this.log.scrollHeight;
    }
    this.live();
    if (this.isOperator || !answer) return;
    const unfolded = new Set([...this.prompt.querySelectorAll("details[open]")].map((one) => one.dataset.name));
    const told = JSON.stringify(answer.prompt);
    if (told === this.told && this.prompt.hasChildNodes()) return;
    this.told = told;
    show(this.prompt, prompt(answer.prompt, unfolded));
  }

  nothing(answer) {
    if (this.isOperator) return h("div.nothing", empty("Say hello: this is your own conversation with the agent. Nobody else sees it."));
    return h("div.nothing", empty(answer ? "There are no messages here yet." : "This conversation does not exist any more."));
  }

  head(answer) {
    const id = this.id;
    if (this.heading.contains(document.activeElement) && this.heading.dataset.id === id) return;
    this.heading.dataset.id = id;
    const key = `talk ${id}`;
    const back = h("button", { type: "button", class: "plain", "aria-label": "Close this conversation", title: "Close (Esc)", on: { click: () => this.close() } }, "✕");
    const acts = [
      { label: "Start over", words: ["new"], confirm: "Start over? The agent no longer sees what was said here before." },
      { label: "Shorten", words: ["compact"], title: "Shorten what the agent sees of this conversation, now" },
      { label: "Answer again", words: ["retry"], title: "Answer the last question here again" },
    ].map((one) => ({ ...one, about: { place: id } }));
    show(
      this.heading,
      h("h3", { tabindex: -1 }, this.isOperator ? "You and the agent" : placed(id)),
      titleOf(id) === id || this.isOperator ? null : h("span.quiet.mono", said(id)),
      answer?.agent ? h("span.chip.calm", said(answer.agent)) : null,
      h("span.spring"),
      this.close ? back : null,
      answer ? buttons(key, acts, this.model(id, key)) : null,
    );
  }

  /** A choice of the model that answers in this room. */
  model(id, key) {
    const names = this.models();
    if (this.isOperator || !names.length) return null;
    const run = (name) => order(["model", "here", name], { place: id });
    return choice({ label: "Model of this room", names: ["default", ...names], act: "Use this model here", key, run });
  }

  line(one, agent) {
    const words = one.ours ? markdown(one.text) : said(one.text);
    return h(
      one.ours !== this.isOperator ? "div.bubble.ours" : "div.bubble", // who reads it stands on the right
      h("div.top", said(one.who || (one.ours ? agent : ""), { class: "who" }), time(one.at), one.fate ? chip(one.fate) : null),
      h("div", { class: "words", dir: "auto" }, words),
    );
  }

  /** Show the turn that runs here, with what it has written so far. */
  live() {
    const turn = this.id && this.running(this.id);
    if (!turn) return show(this.now);
    const doing = turn.tool ? `uses ${turn.tool}` : turn.tail ? "writes" : "thinks";
    const stop = { label: "Stop", words: ["stop"], about: { place: this.id }, title: "Stop what the agent is doing here" };
    put(
      this.now,
      h("span.spin", { "aria-hidden": "true" }),
      h("span.quiet", `${turn.agent} ${doing} …`),
      buttons(`stop ${turn.turn}`, [stop]),
      turn.tail ? h("p.tail", said(turn.tail)) : null,
    );
  }
}
