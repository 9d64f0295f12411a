/** Views: one section of the page is shown at a time, by the hash of the address: `#NAME` or `#NAME/PART`. */

import { Refresh } from "./api.js";
import { h, quiet } from "./dom.js";

/** Return the address of a view, with the id of what it opens. */
export const address = (view, part = "") => `#${view}${part && `/${encodeURIComponent(part)}`}`;

export class Views {
  /**
   * `groups`: views by the heading of their group. A view has a `name`, a `title`, a `body`, and perhaps a `hint` and
   * `tools` beside its heading; a `tall` one has the height of the screen. `shown(name, part, changed)`: called when a
   * view is shown, and when its part changes.
   */
  constructor({ nav, menu, main }, shown, groups) {
    Object.assign(this, { nav, menu, shown, total: 0 });
    const link = ({ name, title }) => h("a", { href: `#${name}` }, title, name === "waiting" ? h("span.count", { role: "img" }) : null);
    nav.prepend(...Object.entries(groups).flatMap(([heading, all]) => [heading && h("h2", heading), ...all.map(link)]));
    main.append(...Object.values(groups).flat().map(section));
    this.links = [...nav.querySelectorAll("a")];
    nav.addEventListener("click", (event) => event.target.closest("a") && nav.matches(":popover-open") && nav.hidePopover());
  }

  /** Names of the views that this role has, in order. */
  get names() {
    return this.links.filter((one) => !one.hidden).map((one) => one.hash.slice(1));
  }

  /** Show or hide a view in the navigation. */
  offer(name, there) {
    this.links.find((one) => one.hash === `#${name}`).hidden = !there;
  }

  /** Tell the number of what waits. */
  count(number) {
    const badge = this.nav.querySelector(".count");
    badge.textContent = number || "";
    badge.ariaLabel = `${number} wait for you`;
    if (number) this.menu.dataset.count = number;
    else delete this.menu.dataset.count;
    this.total = number;
    this.entitle();
  }

  entitle() {
    const heading = document.querySelector(".view:not([hidden]) h2");
    document.title = `${this.total ? `(${this.total}) ` : ""}${heading.textContent} · Reverie`;
  }

  /** Show what the address says. `focus`: move the focus to the heading, as a new page would. */
  follow(focus) {
    const [name, ...rest] = location.hash.slice(1).split("/");
    const view = this.names.includes(name) ? name : "waiting";
    const changed = view !== Refresh.view;
    Refresh.view = view;
    for (const one of document.querySelectorAll("main > .view")) one.hidden = one.id !== view;
    for (const one of this.links) one.ariaCurrent = one.hash === `#${view}` ? "page" : null;
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

const section = ({ name, title, hint, tools, tall, body }) =>
  h(
    "section.view",
    { id: name, class: tall ? "tall" : "", "aria-labelledby": `${name}-h`, hidden: true },
    h("header", h("h2", { id: `${name}-h`, tabindex: -1 }, title), hint ? quiet(hint) : null, tools),
    body,
  );
