/** Blocks of the last prompt, and how much of each was read from the cache. */

import { empty, h, said, show, visible } from "./dom.js";
import { dollars, plural, time, tokens } from "./format.js";

const fresh = (one) => Math.max(0, one.tokens - one.read_tokens - one.written_tokens);

/** Bar of three parts. Their sizes are custom properties that the style sheet draws. */
function bar(one) {
  const style = { "--read": one.read_tokens, "--written": one.written_tokens, "--fresh": fresh(one) };
  return h("span", { class: "bar3", "aria-hidden": "true", style }, ["read", "written", "fresh"].map((part) => h("i", { class: part })));
}

function lifetime({ lifetime: kept }) {
  const title = kept ? `the cache keeps it for ${kept === "1h" ? "an hour" : "five minutes"}` : "not marked for the cache";
  return h("span", { class: kept ? `life l-${kept}` : "life", title }, kept ?? "–");
}

function copier(text) {
  const copied = h("button", { type: "button", class: "plain copy" }, "Copy");
  const tell = (words) => () => show(copied, words);
  copied.addEventListener("click", () => navigator.clipboard.writeText(text).then(tell("Copied"), tell("Could not copy")));
  return copied;
}

function block(one, index, unfolded) {
  const key = `${index} ${one.name}`;
  const sizes = [
    ["tokens", one.tokens, "tokens"],
    ["read", one.read_tokens, "tokens expected to be read from the cache"],
    ["written", one.written_tokens, "tokens expected to be written to the cache"],
  ].map(([name, count, what]) => h("span", { class: `size ${name}`, title: `${count} ${what}` }, count ? tokens(count) : "–", h("span.unseen", ` ${name}, `)));
  const mark = h("span", { class: "mark", title: one.marked ? "a cache mark follows it" : null }, one.marked ? "◆" : "");
  const details = h(
    "details",
    { "data-name": key },
    h("summary", mark, said(one.name, { class: "name" }), lifetime(one), bar(one), sizes),
  );
  const unfold = () => {
    if (!details.open || details.querySelector(".exact")) return;
    const text = h("pre", { tabindex: 0, role: "region", "aria-label": `Text of ${one.name}` }, visible(one.text));
    details.append(h("div.exact", one.text ? [copier(one.text), text] : empty("This block has no text.")));
  };
  details.addEventListener("toggle", unfold);
  if (unfolded.has(key)) {
    details.open = true;
    unfold();
  }
  return h("li", details);
}

/** Cost of the request; null: not answered yet, or not known. */
function billed({ bill, missed }) {
  if (!bill) return h("p.quiet", "its cost is not known yet");
  const words = `${dollars(bill.cost_usd)}: ${tokens(bill.read_tokens)} tokens read from the cache, ${tokens(bill.written_tokens)} written to it, ${tokens(bill.input_tokens)} neither, ${tokens(bill.output_tokens)} in the answer`;
  const miss = missed ? h("span", { class: "chip bad", title: "the cache was used less than expected" }, said(String(missed))) : null;
  return h("p.bill", words, " ", miss);
}

/** `said_`: `prompt` of `/api/conversation`; null: no request since the start. `unfolded`: expanded blocks. */
export function prompt(said_, unfolded) {
  const heading = (...more) => h("h4", "Last prompt", more);
  if (!said_)
    return [heading(), empty("The model was not used here since the start. The next prompt appears here, block by block.")];
  const sum = (name) => said_.blocks.reduce((all, one) => all + one[name], 0);
  const [whole, read, written] = [sum("tokens"), sum("read_tokens"), sum("written_tokens")];
  const part = (one) =>
    h(
      "span",
      {
        class: one.marked ? "part marked" : "part",
        title: `${one.name}: ${plural(one.tokens, "token")}`,
        style: { "flex-grow": Math.max(one.tokens, whole / 200) },
      },
      bar(one),
    );
  const key = (kind, words) => h("span.pair", h("i", { class: kind }), words);
  const names = ["", "block", "kept", "", "tokens", "read", "written"].map((name) => h("span", name));
  const tools = h(
    "details",
    { class: "tools", "data-name": "tools", open: unfolded.has("tools") },
    h("summary", plural(said_.tools.length, "tool")),
    h("p", said_.tools.map((name) => h("code", said(name)))),
  );
  return [
    heading(h("span.quiet", time(said_.at), " · ", said(said_.model), ` · ${tokens(whole)} tokens · ${plural(said_.marks, "mark")}`)),
    billed(said_),
    h("div", { class: "ribbon", role: "img", "aria-label": `${whole} tokens: ${read} read, ${written} written` }, said_.blocks.map(part)),
    h(
      "p.key3",
      key("read", `read from the cache ${tokens(read)}`),
      key("written", `written to it ${tokens(written)}`),
      key("fresh", `neither ${tokens(said_.blocks.reduce((all, one) => all + fresh(one), 0))}`),
      h("span.pair", h("span.mark", "◆"), "cache mark"),
    ),
    h("p.quiet", "Open a block to read its exact text."),
    h("ol.blocks", h("li", { class: "names", "aria-hidden": "true" }, names), said_.blocks.map((one, index) => block(one, index, unfolded))),
    said_.tools.length ? tools : null,
  ];
}
