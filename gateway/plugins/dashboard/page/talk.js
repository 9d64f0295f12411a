/** One conversation: its last messages, a field to answer, and the last prompt. */

import { acts, choice, order, send, tell } from "./acts.js";
import { describe } from "./agents.js";
import { get, may } from "./api.js";
import { chip, empty, h, put, quiet, said, show } from "./dom.js";
import { plural, time } from "./format.js";
import { fateChip } from "./legend.js";
import { markdown } from "./markdown.js";
import { prompt } from "./prompt.js";
import { address } from "./views.js";

/** The operator's own conversation with the agent. */
const OPERATOR = "console/operator";
const MOST_HINTS = 6;
/** Split as a shell does: words in quotes are one. */
const split = (text) => [...text.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain);

export class Talk {
  /** `agents`: know the turn that runs in a conversation, and the models. */
  constructor(agents, id = OPERATOR) {
    Object.assign(this, { name: "talk", title: "Talk", hint: "Your own conversation with the agent.", tall: true });
    Object.assign(this, { body: h("div.panel.opened"), agents, id, asked: 0 });
  }

  get isOperator() {
    return this.id === OPERATOR;
  }

  /** Show a conversation. `focus`: move the focus to its heading. */
  async open(id, focus = false) {
    this.id = id;
    await this.load(true);
    if (focus) this.body.querySelector("h3")?.focus({ preventScroll: true });
  }

  /** Load the conversation again. `follow`: show its end, as when the end is in sight already. */
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
    const log = this.body.querySelector(".talk");
    const follows = follow || !log || log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const opened = new Set(Array.from(this.body.querySelectorAll("details[open]"), (one) => one.key));
    put(
      this.body,
      this.head(answer),
      h("div.said", this.log(answer), h("div.now", this.turn()), this.reply()),
      this.isOperator ? null : h("div.last-prompt.scroll", { key: `prompt of ${id}` }, prompt(answer?.prompt, opened)),
    );
    if (follows) this.body.querySelector(".talk").scrollTop = Number.MAX_SAFE_INTEGER;
  }

  head(answer) {
    const { id } = this;
    return h(
      "header.opened-head",
      { key: id },
      h("h3", { tabindex: -1 }, this.isOperator ? "You and the agent" : said(answer?.title || id)),
      answer?.title && !this.isOperator ? h("span.quiet.mono", said(id)) : null,
      answer?.agent ? chip(said(answer.agent)) : null,
      h("span.spring"),
      this.isOperator
        ? null
        : h("a.close", { href: address("conversations"), "aria-label": "Close this conversation", title: "Close (Esc)" }, "✕"),
      answer &&
        acts(
          { label: "Start over", words: ["new"], place: id, confirm: "Start over? The agent no longer sees what was said here before." },
          { label: "Shorten", words: ["compact"], place: id, title: "Shorten what the agent sees of this conversation" },
          { label: "Answer again", words: ["retry"], place: id, title: "Answer the last question here again" },
          this.isOperator ? null : this.model(),
        ),
    );
  }

  /** A choice of the model that answers in this room. */
  model() {
    const names = ["default", ...this.agents.models.map((one) => one.name)];
    return choice({ label: "Model of this room", names, press: "Use this model here", words: ["model", "here"], place: this.id });
  }

  log(answer) {
    const messages = answer?.messages ?? [];
    const none = this.isOperator
      ? "Say hello: only those with a token for this page see what is said here."
      : "There are no messages here.";
    return h(
      "div.talk.scroll",
      {
        key: `log of ${this.id}`,
        tabindex: 0,
        role: "log",
        "aria-live": this.isOperator ? "polite" : "off",
        "aria-label": `The last ${plural(messages.length, "message")}`,
      },
      messages.length ? messages.map((one) => this.message(one, answer.agent)) : empty(none),
    );
  }

  message(one, agent) {
    return h(
      "div.bubble",
      { key: one.seq, class: one.ours === this.isOperator ? "" : "ours" }, // who reads it stands on the right
      h("div.top", said(one.who || (one.ours ? agent : ""), { class: "who" }), time(one.at), one.fate ? fateChip(one.fate) : null),
      h("div.words", { dir: "auto" }, one.ours ? markdown(one.text) : said(one.text)),
    );
  }

  /** The field to write in. What begins with `/` is a command about this conversation. */
  reply() {
    if (!may("operate")) return null;
    const label = this.isOperator ? "Write to the agent, or a command after /" : "Answer in the agent's name, or a command after /";
    const id = this.id;
    const field = h("textarea", { rows: 2, "aria-label": label, placeholder: label, maxlength: 16_000 });
    const button = h("button.strong", "Send");
    const hints = h("div.hints", { role: "status" });
    let [commands, fitting] = [[], []];
    field.oninput = async () => {
      if (field.value === "/") commands = (await get("/api/commands").catch(() => ({ items: [] }))).items;
      const [typed, slash] = [field.value.slice(1), field.value.startsWith("/")];
      fitting = commands.filter(({ name }) => slash && (name.startsWith(typed) || typed.startsWith(`${name} `))).slice(0, MOST_HINTS);
      show(hints, fitting.map(({ usage, help }) => h("div", h("b.mono", said(usage)), " ", quiet(said(help)))));
    };
    const onsubmit = async (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!text || button.disabled) return;
      button.disabled = true;
      const words = text.startsWith("/") ? split(text.slice(1)) : ["say", id, text];
      const result = await (this.isOperator ? send("/api/say", { text }) : order(words, { place: id }));
      button.disabled = false;
      if (result.ok) field.value = "";
      field.oninput();
      if (!this.isOperator || !result.ok) tell(result);
      await this.load(true).catch(() => {});
    };
    field.onkeydown = (event) => {
      const [first] = fitting;
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) onsubmit(event);
      else if (event.key === "Tab" && !event.shiftKey && first && !field.value.startsWith(`/${first.name} `)) {
        event.preventDefault();
        field.value = `/${first.name} `;
        field.oninput();
      }
    };
    return h("form.reply", { key: `reply in ${id}`, kept: true, onsubmit }, hints, field, button);
  }

  /** Show the turn that runs here, with what it has written so far. */
  live() {
    const now = this.body.querySelector(".now");
    if (this.id && now) put(now, this.turn());
  }

  turn() {
    const turn = this.agents.turnIn(this.id);
    return turn ? describe(turn) : null;
  }
}
