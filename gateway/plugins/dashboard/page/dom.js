/**
 * Building and updating of DOM nodes. Text becomes text nodes, and nothing on this page parses markup, so foreign text
 * is never more than text.
 */

/** Attributes that change as the page is used: what is drawn again does not set them back. */
const OWN = ["open", "aria-busy", "style"];

const present = (nodes) => nodes.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);

/**
 * Return an element. `name`: its tag, and its classes behind dots. `properties` may be left
 * out: attributes, listeners (`onclick`), `style` (properties by name), `key` (its identity for `put`), and `kept` (what
 * is in it stays when `put` draws again). Properties and children that are null or false are left out.
 */
export function h(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  const { class: more, ...properties } = rest[0]?.constructor === Object ? rest.shift() : {};
  if (more) classes.push(more);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) listen(element, key.slice(2), value);
    else if (key === "key" || key === "kept") element[key] = value;
    else if (key === "style") for (const [one, to] of Object.entries(value)) element.style.setProperty(one, to);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...present(rest));
  return element;
}

/** Call a listener, or the one that `put` has put in its place. */
function listen(element, type, listener) {
  element.listeners = { ...element.listeners, [type]: listener };
  element.addEventListener(type, (event) => element.listeners[type](event));
}

/** Replace all children. */
export const show = (element, ...children) => element.replaceChildren(...present(children));

/**
 * Draw the children of an element again. Elements that are there already are changed in place, so they keep the focus,
 * what is typed and their scroll position; those with a key are known by it, others by their position.
 */
export function put(root, ...children) {
  const focused = document.activeElement;
  const fresh = document.createElement("div");
  fresh.append(...present(children));
  patch(root, fresh);
  if (!focused.isConnected) document.querySelector(".view:not([hidden]) h2")?.focus({ preventScroll: true });
}

function patch(old, fresh) {
  const wanted = new Set(Array.from(fresh.children, (one) => one.key));
  for (const one of [...old.children]) if (one.key && !wanted.has(one.key)) one.remove();
  const known = new Map(Array.from(old.children, (one) => [one.key, one]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const found = next.key ? known.get(next.key) : at;
    if (found?.nodeName !== next.nodeName || found.key !== next.key) {
      old.insertBefore(next, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else old.insertBefore(found, at);
    if (found.nodeType === Node.ELEMENT_NODE) update(found, next);
    else if (found.data !== next.data) found.data = next.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function update(old, next) {
  if (next.kept) return;
  for (const { name } of [...old.attributes])
    if (!next.hasAttribute(name) && !OWN.includes(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes)
    if (old.getAttribute(name) !== value && !OWN.includes(name)) old.setAttribute(name, value);
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
  old.listeners = next.listeners;
  patch(old, next);
}

// Control and format characters, default ignorables, private use and lone surrogates; not line feeds and tabs.
// Exceptions: selectors and joiners within emoji, joiners between letters (Indic and Arabic scripts need them).
const HIDDEN =
  /(?![\n\t])(?!(?<=\p{Emoji})\u{FE0F})(?!(?<=[\p{Extended_Pictographic}\u{FE0F}\p{EMod}])\u200D(?=\p{Extended_Pictographic}))(?!(?<=[\p{L}\p{M}])[\u200C\u200D](?=\p{L}))([\p{Cc}\p{Cf}\p{DI}\p{Co}\p{Cs}\u2028\u2029])\1*/gu;

/** Return foreign text as nodes. Characters that are invisible or change the direction are replaced by their names. */
export function visible(text) {
  const nodes = [];
  let from = 0;
  for (const { 0: found, 1: char, index } of text.matchAll(HIDDEN)) {
    const many = found.length / char.length;
    const name = `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}${many > 1 ? `×${many}` : ""}`;
    nodes.push(text.slice(from, index), h("span.hidden-char", { title: "an invisible character" }, name));
    from = index + found.length;
  }
  return [...nodes, text.slice(from)];
}

/** As above, isolated in its direction, so that it cannot move what stands beside it. */
export const said = (text, properties = {}) => h("bdi", properties, visible(String(text ?? "")));

/** Return the paragraph for an empty panel, which says what will appear there and when. */
export const empty = (...words) => h("p.empty", words);
export const quiet = (...words) => h("span.quiet", words);
/** Return a label. `tone`: `done`, `open`, `held`, `bad`, or `calm`. */
export const chip = (words, tone = "calm", title = null) => h(`span.chip.${tone}`, { title }, words);

/** Return a part of a view. `more`: nodes of its header. */
export const panel = (title, body, more = null) =>
  h("section.panel", { "aria-label": title }, h("header", h("h3", title), more), body);

/** Return a field to search in. */
export const find = (label) => h("input", { type: "search", "aria-label": label, placeholder: label, autocomplete: "off" });
/** Return a choice. `options`: values by their words. */
export const select = (label, options = {}) =>
  h("select", { "aria-label": label }, Object.entries(options).map(([words, value]) => h("option", { value }, words)));

/** Return the title of a record's conversation; its id is the tooltip. */
export const placed = ({ conversation, title }, properties = {}) => said(title || conversation, { ...properties, title: conversation });
