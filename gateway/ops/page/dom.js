/**
 * Builds what is seen. Text becomes text nodes, and nothing here or elsewhere on this page parses markup, so that what
 * people, servers and models say is never more than text.
 */

const SVG = "http://www.w3.org/2000/svg";

/** An element. `properties`: `class`, `on` (listeners by name), `style` (custom properties), and attributes; null and
 * false are left out. `children`: nodes, texts, or arrays of them; null and false are left out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for drawings. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** Show these children, and no others. */
export function show(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false),
  );
}

/** What an empty panel will show, and when. */
export const empty = (...words) => h("p", { class: "empty" }, ...words);

// Controls, formats, what is ignorable by default, private use and lone surrogates; lines and tabs are seen as such.
// Kept: selectors and joiners within emoji, joiners between letters (Indic and Arabic scripts need them).
const HIDDEN =
  /(?![\n\t])(?!(?<=\p{Emoji})\u{FE0F})(?!(?<=[\p{Extended_Pictographic}\u{FE0F}\p{EMod}])\u200D(?=\p{Extended_Pictographic}))(?!(?<=[\p{L}\p{M}])[\u200C\u200D](?=\p{L}))([\p{Cc}\p{Cf}\p{DI}\p{Co}\p{Cs}\u2028\u2029])\1*/gu;

const code = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Text of anybody, as nodes: what nobody would see, or what turns lines around, is named where it stands. */
export function visible(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    const many = found[0].length / found[1].length;
    const words = code(found[1]) + (many > 1 ? `×${many}` : "");
    nodes.push(h("span", { class: "hidden-char", title: "a character that is not seen as such" }, words));
    from = found.index + found[0].length;
  }
  if (from < text.length || !nodes.length) nodes.push(text.slice(from));
  return nodes;
}

/** The same, with a direction of its own: it moves nothing beside it. */
export const said = (text, properties = {}) => h("bdi", properties, ...visible(String(text ?? "")));

const titles = new Map();

/** Remember what conversations are called: from any answer or event. */
export function learn(told) {
  if (Array.isArray(told)) for (const one of told) learn(one);
  else if (told && typeof told === "object") {
    const id = told.conversation ?? told.to ?? told.place;
    if (told.title && typeof id === "string") titles.set(id, told.title);
    for (const one of Object.values(told)) if (one && typeof one === "object") learn(one);
  }
  return told;
}

/** What people call a conversation. */
export const titleOf = (id) => titles.get(id) ?? id;

/** A conversation by its title; its id on demand. */
export const placed = (id, properties = {}) => said(titleOf(id), { ...properties, title: id });

/** By both. */
export const placedWhole = (id) => (titleOf(id) === id ? id : `${titleOf(id)} (${id})`);

/** One stop for Tab in a list, and arrows, Home, End, Page Up and Page Down within. `items`: a selector. */
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
    /** After the list has changed: Tab finds something in it. */
    settle() {
      if (!list.querySelector(`${items}[tabindex="0"]`)) {
        const first = list.querySelector(items);
        if (first) first.tabIndex = 0;
      }
    },
  };
}
