/** Blocks of the last prompt, and how much of each was read from the cache. */

import { empty, h, said, show, visible } from "./dom.js";
import { dollars, plural, time, tokens } from "./format.js";

const fresh = (one) => Math.max(0, one.tokens - one.read_tokens - one.written_tokens);

/** Bar of three parts. Their sizes are custom properties that the style sheet draws. */
const bar = (one) =>
  h(
    "span",
    {
      class: "bar3",
      "aria-hidden": "true",
      style: {
        "--read": String(one.read_tokens),
        "--written": String(one.written_tokens),
        "--fresh": String(fresh(one)),
      },
    },
    h("i", { class: "read" }),
    h("i", { class: "written" }),
    h("i", { class: "fresh" }),
  );

const lifetime = (one) =>
  h(
    "span",
    {
      class: one.lifetime ? `life l-${one.lifetime}` : "life",
      title: one.lifetime
        ? `the cache keeps it for ${one.lifetime === "1h" ? "an hour" : "five minutes"}`
        : "not marked for the cache",
    },
    one.lifetime ?? "–",
  );

function block(one, index, unfolded) {
  const key = `${index} ${one.name}`;
  const marked = one.marked
    ? h("span", { class: "mark", title: "a cache mark follows it" }, "◆")
    : h("span", { class: "mark" });
  const sizes = [
    ["tokens", one.tokens],
    ["read", one.read_tokens],
    ["written", one.written_tokens],
  ].map(([name, count]) =>
    h(
      "span",
      {
        class: `size ${name}`,
        title: `${count} tokens${name === "tokens" ? "" : ` expected to be ${name} ${name === "read" ? "from" : "to"} the cache`}`,
      },
      count ? tokens(count) : "–",
    ),
  );
  const details = h(
    "details",
    { "data-name": key },
    h(
      "summary",
      {
        "aria-label": `${one.name}: ${one.tokens} tokens, ${one.read_tokens} read, ${one.written_tokens} written, kept ${one.lifetime ?? "not"}${one.marked ? ", marked" : ""}`,
      },
      marked,
      said(one.name, { class: "name" }),
      lifetime(one),
      bar(one),
      sizes,
    ),
  );
  const unfold = () => {
    if (!details.open || details.querySelector("pre")) return;
    const copied = h(
      "button",
      {
        type: "button",
        class: "plain copy",
        on: {
          click: async () => {
            await navigator.clipboard.writeText(one.text).then(
              () => show(copied, "copied"),
              () => show(copied, "could not copy"),
            );
          },
        },
      },
      "copy",
    );
    details.append(
      h(
        "div",
        { class: "exact" },
        copied,
        one.text
          ? h("pre", { tabindex: 0, "aria-label": `Text of ${one.name}` }, visible(one.text))
          : empty("This block is empty."),
      ),
    );
  };
  details.addEventListener("toggle", unfold);
  if (unfolded.has(key)) {
    details.open = true;
    unfold();
  }
  return h("li", {}, details);
}

/** Cost of the request; null: not answered yet, or not known. */
function billed({ bill, missed }) {
  if (!bill) return h("p", { class: "quiet" }, "its cost is not known yet");
  return h(
    "p",
    { class: "bill" },
    `billed: ${tokens(bill.read_tokens)} read, ${tokens(bill.written_tokens)} written, ${tokens(bill.input_tokens)} neither, ${tokens(bill.output_tokens)} answered, ${dollars(bill.cost_usd)}`,
    missed
      ? [
          " ",
          h(
            "span",
            { class: "chip bad", title: "the cache was used less than expected" },
            said(String(missed)),
          ),
        ]
      : null,
  );
}

/** `said`: `prompt` of `/api/conversation`; null: no request since the start. `unfolded`: expanded blocks. */
export function prompt(said_, unfolded) {
  if (!said_)
    return h(
      "section",
      { class: "prompt", "aria-label": "The last prompt" },
      h("h4", {}, "Last prompt"),
      empty(
        "The model was not used in this conversation since the start. The next prompt appears here, block by block.",
      ),
    );
  const sum = (name) => said_.blocks.reduce((all, one) => all + one[name], 0);
  const whole = sum("tokens");
  const ribbon = h(
    "div",
    {
      class: "ribbon",
      role: "img",
      "aria-label": `${whole} tokens: ${sum("read_tokens")} read, ${sum("written_tokens")} written`,
    },
    said_.blocks.map((one) =>
      h(
        "span",
        {
          class: one.marked ? "part marked" : "part",
          title: `${one.name}: ${plural(one.tokens, "token")}`,
          style: { "flex-grow": String(Math.max(one.tokens, whole / 200)) },
        },
        bar(one),
      ),
    ),
  );
  const tools = said_.tools.length
    ? h(
        "details",
        { class: "tools", "data-name": "tools", open: unfolded.has("tools") },
        h("summary", {}, plural(said_.tools.length, "tool")),
        h(
          "p",
          {},
          said_.tools.map((name) => h("code", {}, said(name))),
        ),
      )
    : null;
  return h(
    "section",
    { class: "prompt", "aria-label": "The last prompt" },
    h(
      "h4",
      {},
      "Last prompt",
      h(
        "span",
        { class: "quiet" },
        time(said_.at),
        " · ",
        said(said_.model),
        ` · ${tokens(whole)} tokens · ${plural(said_.marks, "mark")}`,
      ),
    ),
    billed(said_),
    ribbon,
    h(
      "p",
      { class: "key3" },
      h("i", { class: "read" }),
      `read ${tokens(sum("read_tokens"))}`,
      h("i", { class: "written" }),
      `written ${tokens(sum("written_tokens"))}`,
      h("i", { class: "fresh" }),
      `neither ${tokens(said_.blocks.reduce((all, one) => all + fresh(one), 0))}`,
      h("span", { class: "mark" }, "◆"),
      "mark",
    ),
    h(
      "ol",
      { class: "blocks" },
      h(
        "li",
        { class: "names", "aria-hidden": "true" },
        h("span"),
        h("span", {}, "block"),
        h("span", {}, "kept"),
        h("span"),
        h("span", {}, "tokens"),
        h("span", {}, "read"),
        h("span", {}, "written"),
      ),
      said_.blocks.map((one, index) => block(one, index, unfolded)),
    ),
    tools,
  );
}
