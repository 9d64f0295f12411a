/** The list of conversations, beside the opened one. */

import { get } from "./api.js";
import { empty, h, placed, put, roving, said, show, titleOf } from "./dom.js";
import { since } from "./format.js";
import { Talk } from "./talk.js";
import { address } from "./views.js";

const MOST = 200;

export class Places {
  constructor({ view, list, opened, count, filter, ...talk }) {
    Object.assign(this, { view, list, opened, count, filter, known: [], chosen: null });
    this.talk = new Talk(opened, { ...talk, close: () => (location.hash = address("conversations")) });
    this.roving = roving(list, "a");
    filter.addEventListener("input", () => this.paint());
    view.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.chosen && !event.target.value) this.talk.close();
    });
  }

  async refresh() {
    this.known = (await get("/api/conversations", { limit: MOST })).items;
    this.paint();
    if (!this.chosen && !this.left && this.known.length) this.offer(this.known[0].conversation);
  }

  /** Open a conversation where the screen has room for it beside the list. */
  offer(id) {
    if (location.hash !== address("conversations") || !matchMedia("(min-width: 901px)").matches) return;
    this.byItself = true;
    location.replace(address("conversations", id));
  }

  /** Show the conversation of the address. "": none. `focus`: false: the view itself is new. */
  async follow(id, focus) {
    const before = this.chosen;
    this.left = focus && !id && before !== null;
    focus &&= !this.byItself && id !== before;
    this.byItself = false;
    this.chosen = id || null;
    this.view.classList.toggle("has-opened", Boolean(id));
    this.paint();
    if (id) return this.talk.open(id, focus);
    this.talk.id = null;
    show(this.opened, empty("Choose a conversation to read it, to answer in it, and to see the exact last prompt."));
    if (this.left) this.link(before)?.focus();
    else if (before) this.offer(before);
  }

  load() {
    return this.talk.load();
  }

  link = (id) => [...this.list.querySelectorAll("a")].find((one) => one.dataset.key === id);

  paint() {
    const words = this.filter.value.trim().toLowerCase();
    const shown = this.known.filter((one) => `${titleOf(one.conversation)}\n${one.conversation}\n${one.last_who}`.toLowerCase().includes(words));
    this.count.textContent = this.known.length ? String(this.known.length) : "";
    if (!shown.length)
      return show(this.list, h("li.empty", words ? "No conversation has this name." : "No conversation yet. Each appears here with its first message."));
    put(this.list, shown.map((one) => this.row(one)));
    this.roving.settle();
  }

  row(one) {
    const id = one.conversation;
    return h("li", h(
        "a",
        { href: address("conversations", id), tabindex: -1, "data-key": id, "data-id": id, "aria-current": id === this.chosen ? "true" : null },
        h(
          "span.top",
          placed(id, { class: "place" }),
          one.running ? h("span", { class: "spin", role: "img", "aria-label": "a turn runs" }) : null,
          one.unread ? h("span", { class: "count", title: `${one.unread} unread` }, String(one.unread)) : null,
          h("time", { datetime: one.last_at, title: new Date(one.last_at).toISOString() }, since(one.last_at)),
        ),
        h(
          "span.last",
          one.last_who ? [said(one.last_who, { class: "who" }), ": "] : null,
          said((one.last_text ?? "").slice(0, 200)),
        ),
        h("span.quiet.from", said(id.split("/", 1)[0])),
      ),
    );
  }
}
