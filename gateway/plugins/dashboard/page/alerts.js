/** Problems that need attention, shown above all panels. */

import { h, said, show } from "./dom.js";
import { plural } from "./format.js";

const BAD = new Set(["down", "refused"]);

function found(channels, uncertain) {
  const told = [];
  for (const one of channels)
    if (BAD.has(one.state)) {
      const why = one.reason ? [": ", said(one.reason)] : null;
      told.push(["#channels", [said(one.channel), ` is ${one.state}`, why]]);
    }
  if (uncertain.length) {
    const which = plural(uncertain.length, "delivery is", "deliveries are");
    told.push([
      "#outbox",
      [`${which} uncertain: ${uncertain.length === 1 ? "it" : "they"} may or may not have arrived`],
    ]);
  }
  return told;
}

/** Show an alert. An unchanged one is left alone, because a screen reader would read it again. */
export function alert(root, channels, uncertain) {
  const links = found(channels, uncertain).map(([where, nodes]) => h("a", { href: where, class: "alert" }, nodes));
  const words = links.map((one) => one.textContent).join("\n");
  if (root.dataset.words === words) return;
  root.dataset.words = words;
  show(root, links);
}

/** Readiness in one word, with the reasons: the gateway is ready when every channel that may be connected is up. */
export function standing(root, ready, channels) {
  const reasons = channels.filter((one) => one.state !== "up").map((one) => `${one.channel} is ${one.state}`);
  const words = ready ? "ready" : "not ready";
  root.className = `chip ${ready ? "done" : "bad"}`;
  root.title = reasons.join("; ") || "every channel is up";
  if (root.textContent !== words) root.textContent = words;
}
