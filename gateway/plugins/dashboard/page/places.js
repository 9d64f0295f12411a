/** The list of conversations, beside the opened one. */

import { get } from "./api.js";
import { empty, find, h, placed, put, quiet, said } from "./dom.js";
import { since, time } from "./format.js";
import { Rows } from "./rows.js";
import { address } from "./views.js";

const MOST = 200;

export class Places {
  /** `talk`: where one is opened. */
  constructor(talk) {
    Object.assign(this, { name: "conversations", title: "Conversations", tall: true, tools: quiet(), filter: find("Find a conversation") });
    Object.assign(this, { talk, known: [], chosen: "" });
    this.rows = new Rows({
      label: "Conversations, newest first",
      columns: [
        ["", "place", (one) => placed(one)],
        ["", "at", (one) => this.state(one)],
        ["", "text", (one) => [one.last_who ? `${one.last_who}: ` : "", one.last_text.slice(0, 200)].map((text) => said(text))],
        ["", "from", (one) => said(one.conversation.split("/", 1)[0])],
      ],
      open: (one) => (location.hash = address("conversations", one.conversation)),
    });
    this.filter.oninput = () => this.paint();
    const onkeydown = (event) => {
      if (event.key === "Escape" && this.chosen && !event.target.value) location.hash = address("conversations");
    };
    this.body = h("div.split", { onkeydown }, h("div.panel", h("div.filters", this.filter), this.rows.root), talk.body);
  }

  state = (one) => [
    one.running ? h("span.spin", { role: "img", "aria-label": "a turn runs" }) : null,
    one.unread ? h("span.count", { title: `${one.unread} unread` }, one.unread) : null,
    time(one.last_at, since(one.last_at)),
  ];

  async load() {
    this.known = (await get("/api/conversations", { limit: MOST })).items;
    this.paint();
    await this.talk.load();
  }

  /** Show the conversation of the address. "": none. `focus`: move the focus to it, or back to the list. */
  async follow(id, focus) {
    this.rows.active = id || this.chosen;
    this.chosen = id;
    this.body.classList.toggle("has-opened", Boolean(id));
    this.paint();
    if (id) return this.talk.open(id, focus);
    this.talk.id = null;
    put(this.talk.body, empty("Choose a conversation to read it, to answer in it, and to see the exact last prompt."));
    if (focus) this.rows.list.focus();
  }

  paint() {
    const words = this.filter.value.trim().toLowerCase();
    const shown = this.known.filter((one) => `${one.title}\n${one.conversation}\n${one.last_who}`.toLowerCase().includes(words));
    const none = words ? "No conversation has this name." : "No conversation yet. Each appears here with its first message.";
    this.tools.textContent = this.known.length || "";
    this.rows.set(shown.map((one) => ({ ...one, seq: one.conversation })), none);
  }
}
