/** Markdown of notes and answers as nodes: what agents write, not all of the language. Text stays text. */

import { h, visible } from "./dom.js";

const INLINE = /(`+)(?<code>.+?)\1|\*\*(?<strong>[^*\n]+)\*\*|(?<![\w*])[*_](?<em>[^*_\n]+)[*_](?![\w*])/g;
const ITEM = /^(\s*)(?:[-*+]|\d+[.)])\s+(.*)$/;
const RULE = /^[\s:|]*-[\s:|-]*$/;

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) nodes.push(...visible(text.slice(from, found.index)));
    const [tag, words] = Object.entries(found.groups).find(([, one]) => one !== undefined);
    nodes.push(h(tag, {}, visible(words)));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(...visible(text.slice(from)));
  return nodes;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());

function grid(lines) {
  const [head, , ...rows] = lines.map(cells);
  const row = (tag) => (one) => h("tr", one.map((cell) => h(tag, {}, inline(cell))));
  return h("table.grid", h("thead", row("th")(head)), h("tbody", rows.map(row("td"))));
}

/** Return the nodes of a text. */
export function markdown(text) {
  const lines = String(text ?? "").split("\n");
  const nodes = [];
  const take = (fits) => {
    const found = [];
    while (lines.length && fits(lines[0])) found.push(lines.shift());
    return found;
  };
  while (lines.length) {
    const line = lines[0];
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    if (/^\s*```/.test(line)) {
      lines.shift();
      nodes.push(h("pre", visible(take((one) => !/^\s*```/.test(one)).join("\n"))));
      lines.shift();
    } else if (heading) {
      lines.shift();
      nodes.push(h("p.heading", inline(heading[1])));
    } else if (line.includes("|") && RULE.test(lines[1] ?? "") && lines[1].includes("|"))
      nodes.push(grid(take((one) => one.includes("|"))));
    else if (ITEM.test(line)) {
      const items = take((one) => ITEM.test(one) || /^\s{2,}\S/.test(one));
      const list = h(/^\s*\d/.test(line) ? "ol" : "ul", { class: "bullets" });
      for (const one of items) {
        const [, indent, words] = ITEM.exec(one) ?? [];
        if (words === undefined) list.lastChild.append(" ", ...inline(one.trim()));
        else list.append(h("li", { class: indent.length > 1 ? "deep" : null }, inline(words)));
      }
      nodes.push(list);
    } else if (!line.trim()) lines.shift();
    else {
      const words = [lines.shift(), ...take((one) => one.trim() && !/^(\s*```|#{1,6}\s)/.test(one) && !ITEM.test(one))];
      nodes.push(h("p", inline(words.join("\n"))));
    }
  }
  return nodes;
}
