/** The command box: any command of the gateway, and any view, by a few letters. */

import { order, resultOf, tell } from "./acts.js";
import { get, may } from "./api.js";
import { h, placedWhole, said, show } from "./dom.js";

const KEY = "palette";
const MOST = 8;

/** Split as a shell does: words in quotes are one. */
const words = (text) => [...text.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain);

export class Palette {
  /** `go(view)`: shows a view. `views()`: `[name, title]` of each. `places()`: conversations that a command may be about. */
  constructor(dialog, { go, views, places }) {
    Object.assign(this, { dialog, go, views, places, commands: null, found: [], at: -1, past: [] });
    this.text = dialog.querySelector("input");
    this.about = dialog.querySelector("select");
    this.list = dialog.querySelector("ul");
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.enter();
    });
    this.text.addEventListener("input", () => this.match());
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => {
      const one = event.target.closest("li");
      if (one) this.take(this.found[[...this.list.children].indexOf(one)]);
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.querySelector(".answer").append(resultOf(KEY));
  }

  /** Open the box. `place`: the conversation that commands are about. */
  async open(place) {
    if (this.dialog.open) return;
    const known = new Set([place, ...this.places()].filter(Boolean));
    show(this.about, h("option", { value: "" }, "the gateway, or your own conversation"), [...known].map((id) => h("option", { value: id, selected: id === place }, placedWhole(id))));
    this.about.parentElement.hidden = !may("operate");
    this.text.value = "";
    tell(KEY, { ok: true, text: "" });
    this.dialog.showModal();
    this.match();
    this.commands ??= (await get("/api/commands").catch(() => ({ items: [] }))).items;
    this.match();
  }

  match() {
    const typed = this.text.value.trim().toLowerCase();
    const views = this.views().map(([name, title]) => ({ name: title, help: "open this view", view: name }));
    const commands = may("operate") ? (this.commands ?? []) : [];
    const fits = ({ name, help }) => name.toLowerCase().startsWith(typed) || (typed.length > 2 && `${name} ${help}`.toLowerCase().includes(typed));
    const exact = commands.find(({ name }) => typed.startsWith(`${name} `));
    this.found = exact ? [exact] : [...commands.filter(fits), ...views.filter(fits)].sort((a, b) => b.name.toLowerCase().startsWith(typed) - a.name.toLowerCase().startsWith(typed)).slice(0, MOST);
    this.at = -1;
    show(
      this.list,
      this.found.map((one, index) =>
        h("li", { id: `palette-${index}`, role: "option", "aria-selected": "false" }, h("b", said(one.usage ?? one.name)), h("span.quiet", said(one.help))),
      ),
    );
    this.text.setAttribute("aria-expanded", String(this.found.length > 0));
    this.mark();
  }

  mark() {
    [...this.list.children].forEach((one, index) => one.setAttribute("aria-selected", String(index === this.at)));
    if (this.at < 0) this.text.removeAttribute("aria-activedescendant");
    else this.text.setAttribute("aria-activedescendant", `palette-${this.at}`);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && !this.text.value && by < 0 && this.past.length) {
      this.text.value = this.past.at(-1);
      this.match();
    } else if (by && this.found.length) {
      this.at = (this.at + by + this.found.length + (this.at < 0 && by < 0 ? 1 : 0)) % this.found.length;
      this.mark();
    } else if (event.key === "Tab" && !event.shiftKey && this.found.length && this.text.value.trim() && !this.typed()) this.take(this.found[Math.max(0, this.at)]);
    else return;
    event.preventDefault();
  }

  /** The command that is written out, if one is. */
  typed() {
    const text = `${this.text.value.trim()} `;
    return (this.commands ?? []).find(({ name }) => text.startsWith(`${name} `));
  }

  take(one) {
    if (one.view) {
      this.dialog.close();
      return this.go(one.view);
    }
    this.text.value = `${one.name} `;
    this.text.focus();
    this.match();
  }

  enter() {
    const chosen = this.at >= 0 ? this.found[this.at] : this.typed() ? null : this.found.find((one) => one.view && one.name.toLowerCase() === this.text.value.trim().toLowerCase());
    if (chosen && !(chosen.name === this.text.value.trim())) return this.take(chosen);
    this.run();
  }

  async run() {
    const given = words(this.text.value.replace(/^[/!]/, ""));
    if (!given.length || !may("operate")) return;
    this.past.push(this.text.value.trim());
    tell(KEY, { ok: true, text: "…" });
    const result = await order(given, this.about.value ? { place: this.about.value } : {});
    tell(KEY, result);
    if (result.ok) this.text.select();
  }
}
