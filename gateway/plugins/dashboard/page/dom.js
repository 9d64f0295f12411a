/**
 * Building of DOM nodes. Text becomes text nodes, and nothing on this page parses markup, so foreign text is never more
 * than text.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return an element. `name`: its tag, and its classes behind dots. `properties` may be left out: `class`, `on`
 * (listeners by name), `style` (custom properties), and attributes. `children`: nodes, texts, or arrays of them.
 * Properties and children that are null or false are left out.
 */
export function h(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return fill(element, rest[0]?.constructor === Object ? rest.shift() : {}, rest);
}

/** Return an SVG element; see `h`. */
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const there = (children) => children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

/** Replace all children. */
export const show = (element, ...children) => element.replaceChildren(...there(children));
/**
 * Replace all children of a panel; its scroll position and focus stay. Nothing is done while something is written in
 * it.
 */
export function put(root, ...children) {
  if (root.querySelector("form.editing")) return;
  const [top, focused] = [root.scrollTop, root.contains(document.activeElement) ? document.activeElement : null];
  show(root, ...children);
  root.scrollTop = top;
  if (!focused || root.contains(focused)) return;
  const keyed = [...root.querySelectorAll("[data-key]")];
  const { key, group } = focused.dataset;
  const again = keyed.find((one) => one.dataset.key === key) ?? keyed.find((one) => group && one.dataset.group === group);
  (again ?? root.closest(".view")?.querySelector("h2"))?.focus({ preventScroll: true });
}

/** Return the paragraph for an empty panel, which says what will appear there and when. */
export const empty = (...words) => h("p.empty", ...words);

// Control and format characters, default ignorables, private use and lone surrogates; not line feeds and tabs.
// Exceptions: selectors and joiners within emoji, joiners between letters (Indic and Arabic scripts need them).
const HIDDEN =
  /(?![\n\t])(?!(?<=\p{Emoji})\u{FE0F})(?!(?<=[\p{Extended_Pictographic}\u{FE0F}\p{EMod}])\u200D(?=\p{Extended_Pictographic}))(?!(?<=[\p{L}\p{M}])[\u200C\u200D](?=\p{L}))([\p{Cc}\p{Cf}\p{DI}\p{Co}\p{Cs}\u2028\u2029])\1*/gu;

const code = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Return foreign text as nodes. Characters that are invisible or change the direction are replaced by their names. */
export function visible(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    const many = found[0].length / found[1].length;
    const words = code(found[1]) + (many > 1 ? `×${many}` : "");
    nodes.push(h("span", { class: "hidden-char", title: "an invisible character" }, words));
    from = found.index + found[0].length;
  }
  if (from < text.length || !nodes.length) nodes.push(text.slice(from));
  return nodes;
}

/** As above, isolated in its direction, so that it cannot move what stands beside it. */
export const said = (text, properties = {}) => h("bdi", properties, ...visible(String(text ?? "")));

const titles = new Map();

/** Remember the display titles of conversations from an answer or event. */
export function learn(told) {
  if (Array.isArray(told)) for (const one of told) learn(one);
  else if (told && typeof told === "object") {
    const id = told.conversation ?? told.to ?? told.place;
    if (told.title && typeof id === "string") titles.set(id, told.title);
    for (const one of Object.values(told)) if (one && typeof one === "object") learn(one);
  }
  return told;
}

/** Return the display title of a conversation. */
export const titleOf = (id) => titles.get(id) ?? id;

/** Return an element with the title of a conversation; its id is the tooltip. */
export const placed = (id, properties = {}) => said(titleOf(id), { ...properties, title: id });

/** Return title and id of a conversation. */
export const placedWhole = (id) => (titleOf(id) === id ? id : `${titleOf(id)} (${id})`);

/** Make a list one stop for Tab, with arrow keys, Home, End, Page Up and Page Down inside. `items`: a selector. */
export function roving(list, items) {
  const all = () =>
    [...list.querySelectorAll(items)].filter((one) => one.offsetParent !== null || one === document.activeElement);
  const stop = (next) => {
    for (const one of list.querySelectorAll(`${items}[tabindex="0"]`)) if (one !== next) one.tabIndex = -1;
    next.tabIndex = 0;
  };
  list.addEventListener("focusin", (event) => {
    const item = event.target.closest(items);
    if (item && list.contains(item)) stop(item);
  });
  list.addEventListener("keydown", (event) => {
    const item = event.target.closest(items);
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const found = all();
    const at = found.indexOf(item);
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      j: at + 1,
      k: at - 1,
      Home: 0,
      End: found.length - 1,
      PageDown: at + 10,
      PageUp: at - 10,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    found[Math.max(0, Math.min(found.length - 1, to))]?.focus();
  });
  return {
    /** Make sure that Tab finds an item after the list has changed. */
    settle() {
      if (!list.querySelector(`${items}[tabindex="0"]`)) {
        const first = list.querySelector(items);
        if (first) first.tabIndex = 0;
      }
    },
  };
}
