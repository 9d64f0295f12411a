/** Views: one section of the page is shown at a time, by the hash of the address: `#NAME` or `#NAME/PART`. */

import { Refresh } from "./refresh.js";

/** Return the address of a view, with the id of what it opens. */
export const address = (view, part = "") => `#${view}${part && `/${encodeURIComponent(part)}`}`;

export class Views {
  /** `shown(name, part)`: called when a view is shown, and when its part changes. */
  constructor(nav, menu, shown) {
    Object.assign(this, { nav, menu, shown, links: [...nav.querySelectorAll("a")] });
    menu.addEventListener("click", () => this.unfold(menu.getAttribute("aria-expanded") !== "true"));
    nav.addEventListener("click", (event) => event.target.closest("a") && this.unfold(false));
    nav.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && menu.getAttribute("aria-expanded") === "true") {
        this.unfold(false);
        menu.focus();
      }
    });
    document.addEventListener("click", (event) => {
      if (!nav.contains(event.target) && !menu.contains(event.target)) this.unfold(false);
    });
  }

  /** Names of the views that this gateway and role have, in order. */
  get names() {
    return this.links.filter((one) => !one.hidden).map((one) => one.hash.slice(1));
  }

  link = (name) => this.links.find((one) => one.hash === `#${name}`);

  /** Show or hide a view in the navigation. */
  offer(name, there) {
    this.link(name).hidden = !there;
    if (!there && Refresh.view === name) location.replace("#waiting");
  }

  /** Set the number beside a view's name. `words`: what is counted. */
  count(name, number, words) {
    const badge = this.link(name).querySelector(".count");
    badge.textContent = number ? String(number) : "";
    badge.setAttribute("aria-label", number ? `${number} ${words}` : "");
    this.menu.dataset.count = number || "";
    this.menu.setAttribute("aria-label", number ? `Menu, ${number} ${words}` : "Menu");
    this.total = number;
    this.entitle();
  }

  entitle() {
    const name = this.link(Refresh.view)?.firstChild.data.trim() ?? "";
    document.title = `${this.total ? `(${this.total}) ` : ""}${name} · Reverie`;
  }

  unfold(open) {
    this.menu.setAttribute("aria-expanded", String(open));
    this.nav.classList.toggle("unfolded", open);
    if (open) this.link(Refresh.view)?.focus();
  }

  key(event) {
    const shown = this.links.filter((one) => one.checkVisibility());
    const at = shown.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || !shown[to]) return;
    event.preventDefault();
    shown[to].focus();
  }

  /** Show what the address says. `focus`: move the focus to the heading, as a new page would. */
  follow(focus) {
    const [name, ...rest] = location.hash.slice(1).split("/");
    const view = this.names.includes(name) ? name : "waiting";
    const changed = view !== Refresh.view;
    Refresh.view = view;
    for (const one of document.querySelectorAll("main > .view")) one.hidden = one.id !== view;
    for (const one of this.links)
      if (one.hash === `#${view}`) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    this.entitle();
    let part = "";
    try {
      part = decodeURIComponent(rest.join("/"));
    } catch {
      // not an address of ours
    }
    if (changed) window.scrollTo(0, 0);
    if (changed && focus) document.querySelector(`#${view} h2`).focus({ preventScroll: true });
    this.shown(view, part, changed);
  }
}
