/** Conversations: the list, and the last messages and the last prompt of the open one. */

import { get } from "./api.js";
import { empty, h, placed, roving, said, show, titleOf } from "./dom.js";
import { plural, since, time } from "./format.js";
import { chip } from "./row.js";
import { prompt } from "./prompt.js";

const MOST = 200;

export class Places {
  constructor({ list, opened, count }) {
    Object.assign(this, { list, opened, count, chosen: null, known: [], asked: 0 });
    this.roving = roving(list, "button");
    opened.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  async refresh() {
    const { items: conversations } = await get("/api/conversations", { limit: MOST });
    this.known = conversations;
    this.paint();
  }

  paint() {
    this.count.textContent = this.known.length ? String(this.known.length) : "";
    if (!this.known.length)
      show(this.list, h("li", { class: "empty" }, "No conversation yet. Each appears here with its first message."));
    else {
      const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
      const top = this.list.scrollTop;
      show(
        this.list,
        this.known.map((one) => this.row(one)),
      );
      this.list.scrollTop = top;
      if (focused) this.button(focused)?.focus({ preventScroll: true });
    }
    if (!this.chosen)
      show(
        this.opened,
        empty("Open a conversation to see its last messages and the exact last prompt."),
      );
    this.roving.settle();
  }

  button = (id) => [...this.list.querySelectorAll("button")].find((one) => one.dataset.id === id);

  row(one) {
    const open = one.conversation === this.chosen;
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          tabindex: -1,
          "data-id": one.conversation,
          "aria-current": open ? "true" : null,
          on: { click: () => this.open(one.conversation, true) },
        },
        h(
          "span",
          { class: "top" },
          placed(one.conversation, { class: "place" }),
          titleOf(one.conversation) === one.conversation
            ? null
            : h("span", { class: "quiet" }, said(one.conversation.split("/", 1)[0])),
          one.running ? h("span", { class: "spin", role: "img", "aria-label": "a turn runs" }) : null,
          one.unread ? h("span", { class: "count", title: `${one.unread} unread` }, String(one.unread)) : null,
          h("time", { datetime: one.last_at, title: new Date(one.last_at).toISOString() }, since(one.last_at)),
        ),
        h(
          "span",
          { class: "last" },
          one.last_who ? [said(one.last_who, { class: "who" }), ": "] : null,
          said((one.last_text ?? "").slice(0, 200)),
        ),
      ),
    );
  }

  async open(id, focus = false) {
    this.chosen = id;
    for (const one of this.list.querySelectorAll("button")) one.toggleAttribute("aria-current", one.dataset.id === id);
    this.list.querySelector("[aria-current]")?.setAttribute("aria-current", "true");
    await this.load(focus);
  }

  /** Load the open conversation again. Expanded parts stay expanded. */
  async load(focus = false) {
    const id = this.chosen;
    if (!id) return;
    const asked = ++this.asked;
    let answer;
    try {
      answer = await get("/api/conversation", { id });
    } catch (error) {
      if (error.status !== 404) throw error;
      answer = null;
    }
    if (asked !== this.asked || id !== this.chosen) return;
    const unfolded = new Set([...this.opened.querySelectorAll("details[open]")].map((one) => one.dataset.name));
    const talk = this.opened.querySelector(".talk");
    const follows = focus || !talk || talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
    const top = talk?.scrollTop;
    const heading = h(
      "header",
      {},
      h("h3", { tabindex: -1 }, placed(id)),
      titleOf(id) === id ? null : h("span", { class: "quiet mono" }, said(id)),
      answer ? h("span", { class: "quiet" }, said(answer.agent ?? "")) : null,
      h("span", { class: "spring" }),
      h(
        "button",
        {
          type: "button",
          class: "plain",
          "aria-label": "Close this conversation",
          title: "Close (Esc)",
          on: { click: () => this.close() },
        },
        "✕",
      ),
    );
    if (!answer) show(this.opened, heading, empty("This conversation does not exist any more."));
    else show(this.opened, heading, this.talk(answer.messages, answer.agent), prompt(answer.prompt, unfolded));
    const now = this.opened.querySelector(".talk");
    if (now) now.scrollTop = follows ? now.scrollHeight : top;
    if (focus) {
      this.opened.querySelector("h3").focus({ preventScroll: true });
      if (this.opened.offsetTop > this.list.offsetTop + 20) this.opened.scrollIntoView({ block: "start" });
    }
  }

  talk(messages, agent) {
    if (!messages.length) return empty("There are no messages here yet.");
    return h(
      "ol",
      {
        class: "talk scroll",
        tabindex: 0,
        role: "log",
        "aria-live": "off",
        "aria-label": `The last ${plural(messages.length, "message")}`,
      },
      messages.map((one) =>
        h(
          "li",
          { class: one.ours ? "ours" : null },
          time(one.at),
          said(one.who || (one.ours ? agent : ""), { class: "who" }),
          said(one.text, { class: "words", dir: "auto" }),
          one.fate ? chip(one.fate) : h("span"),
        ),
      ),
    );
  }

  close() {
    const id = this.chosen;
    this.chosen = null;
    this.asked += 1;
    this.paint();
    if (id) this.button(id)?.focus();
  }
}
