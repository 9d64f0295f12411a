/** What the words of the page mean: fates of notifications, urgencies. */

import { chip, h } from "./dom.js";

/** Fates: `[tone, what it means]`. */
const FATES = {
  waiting: ["open", "A turn is due, and none has ended yet."],
  overheard: ["open", "Not for the agent; the next turn there sees it."],
  "looked at": ["open", "The agent saw it by itself and did nothing yet."],
  interrupted: ["open", "The turn was interrupted; the next one answers."],
  answered: ["done", "A turn answered it."],
  "answered elsewhere": ["done", "The agent answered it on its own, from another place."],
  command: ["done", "A command; answered without the model."],
  "taken up": ["done", "The agent took it up on its own."],
  handled: ["done", "The agent found that nothing is to be done."],
  failed: ["bad", "The turn failed; nobody was answered."],
  refused: ["held", "Not let in by access rules; the model never sees it."],
  silent: ["calm", "A turn read it and chose to say nothing."],
  yielded: ["calm", "The turn left the answer to somebody else."],
  noted: ["calm", "Recorded only; no turn is needed."],
  context: ["calm", "Shown to a turn that was about something else."],
  counted: ["calm", "Too many came; a turn saw only their number."],
};
/** By their value, 0 to 3. */
const URGENCIES = [
  ["ambient", "background: never starts a turn"],
  ["low", "looked at when the agent has time"],
  ["normal", "starts a turn soon"],
  ["urgent", "addressed to the agent: starts a turn at once"],
];

export const fateChip = (fate) => chip(fate || "…", ...(FATES[fate] ?? []));

export function urgency(value) {
  const [name, title] = URGENCIES[value] ?? [];
  return h("span.urgency", { class: name, title }, name);
}

/** Return the legend of the live stream. */
export const legend = () =>
  h(
    "details.words-legend",
    h("summary", "What the words mean"),
    h("h3", "Fate: what became of a message"),
    h("dl", Object.entries(FATES).map(([name, [, what]]) => h("div", h("dt", fateChip(name)), h("dd", what)))),
    h("h3", "Urgency: how soon the agent looks"),
    h("dl", URGENCIES.map(([, what], value) => h("div", h("dt", urgency(value)), h("dd", what)))),
  );
