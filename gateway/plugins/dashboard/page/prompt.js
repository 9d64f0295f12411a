/** Blocks of the last prompt, and how much of each was read from the cache. */

import { chip, empty, h, said, visible } from "./dom.js";
import { dollars, plural, time, tokens } from "./format.js";

const KINDS = { read: "read from the cache", written: "written to it", fresh: "neither" };

/** `snapshot`: `prompt` of `/api/conversation`; null: no request since the start. `opened`: keys of blocks. */
export function prompt(snapshot, opened) {
  if (!snapshot)
    return [
      h("h4", "Last prompt"),
      empty("The model was not used here since the start. The next prompt appears here, block by block."),
    ];
  const { blocks, at, model, marks } = snapshot;
  const whole = blocks.reduce((all, one) => all + one.tokens, 0);
  const part = ({ name, marked, tokens: all, read_tokens: read, written_tokens: written }) => {
    const shares = Object.entries({ read, written, fresh: Math.max(0, all - read - written) });
    return h(
      "span.part",
      { class: marked ? "marked" : "", title: `${name}: ${plural(all, "token")}`, style: { "flex-grow": Math.max(all, whole / 200) } },
      shares.map(([kind, count]) => h("i", { class: kind, style: { "flex-grow": count } })),
    );
  };
  return [
    h("h4", "Last prompt"),
    h("p.quiet", time(at), " · ", said(model), ` · ${tokens(whole)} tokens · ${plural(marks, "mark")}`),
    billed(snapshot),
    h("div.ribbon", { "aria-hidden": "true" }, blocks.map(part)),
    h(
      "p.key3",
      Object.entries(KINDS).map(([kind, words]) => h("span", h("i", { class: kind }), ` ${words}`)),
      h("span", h("span.mark", "◆"), " cache mark"),
    ),
    h("div.names", { "aria-hidden": "true" }, ["", "block", "kept", "tokens", "read", "written"].map((name) => h("span", name))),
    h("ol.blocks", blocks.map((one, index) => block(one, `${index} ${one.name}`, opened))),
  ];
}

/** Cost of the request; null: not answered yet, or not known. */
function billed({ bill, missed }) {
  if (!bill) return h("p.quiet", "its cost is not known yet");
  return h(
    "p.bill",
    `${dollars(bill.cost_usd)}: ${tokens(bill.read_tokens)} tokens read from the cache, ${tokens(bill.written_tokens)} written to it, `,
    `${tokens(bill.input_tokens)} neither, ${tokens(bill.output_tokens)} in the answer `,
    missed ? chip(said(missed), "bad", "the cache was used less than expected") : null,
  );
}

function block(one, key, opened) {
  const { lifetime, marked } = one;
  const kept = lifetime ? `the cache keeps it for ${lifetime === "1h" ? "an hour" : "five minutes"}` : "not marked for the cache";
  const size = (name, count) => h("span.size", { title: `${count} tokens ${name}` }, tokens(count), h("span.unseen", ` ${name}, `));
  const ontoggle = ({ currentTarget: details }) => details.querySelector(".exact") ?? details.append(exact(one));
  return h(
    "li",
    h(
      "details",
      { key, open: opened.has(key), ontoggle },
      h(
        "summary",
        h("span.mark", { title: marked ? "a cache mark follows it" : null }, marked ? "◆" : ""),
        said(one.name, { class: "name" }),
        h("span.life", { class: lifetime ? `l-${lifetime}` : "", title: kept }, lifetime ?? "–"),
        size("all", one.tokens),
        size("read", one.read_tokens),
        size("written", one.written_tokens),
      ),
      opened.has(key) ? exact(one) : null,
    ),
  );
}

/** The text of a block, which is made when it is opened: it may be long. */
const exact = ({ name, text }) =>
  text ? h("pre.exact", { tabindex: 0, role: "region", "aria-label": `Text of ${name}` }, visible(text)) : h("p.exact", "This block has no text.");
