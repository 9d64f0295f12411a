/** The page: sign-in, views, and when each part is loaded again. */

import { act, forgetResult } from "./acts.js";
import { Agents } from "./agents.js";
import { ApiError, forgetToken, get, loadRole, may, Refresh, setToken, takeToken, token } from "./api.js";
import { Channels } from "./channels.js";
import { Config } from "./config.js";
import { Costs } from "./costs.js";
import { chip, h, learn, panel, put, said, show } from "./dom.js";
import { Events } from "./events.js";
import { plural, setClock, since } from "./format.js";
import { audit, Live, Search, turns, warnings } from "./lists.js";
import { Places } from "./places.js";
import { showPlugins } from "./plugins.js";
import { OPERATOR, Talk } from "./talk.js";
import { address, Views } from "./views.js";
import { today, waiting } from "./waiting.js";

const THEMES = { system: "◐", light: "○", dark: "●" };
/** Time after which a tab in the background rests: a browser opens six connections per host. */
const HIDDEN_MS = 60_000;
const $ = (id) => document.getElementById(id);

const agents = new Agents();
const talking = { running: agents.turnIn, models: () => agents.models.map((one) => one.name) };
const talk = new Talk(talking);
const places = new Places(new Talk(talking));
const [live, search, turnLog, auditLog, warningLog] = [new Live(), new Search(), turns(), audit(), warnings()];
const costs = new Costs();
const channels = new Channels($("ready"), $("alerts"));
const config = new Config();
const [cards, figures, reload, ownPanels, otherPanels] = ["cards", "figures", "reload", "panels", "panels"].map((name) => h(`div.${name}`));

const views = new Views({ nav: $("nav"), menu: $("menu"), main: $("main") }, shown, {
  "": [
    { name: "waiting", title: "Waiting", heading: "Waiting for you", body: [cards, panel("Running now", agents.running), figures] },
    { name: "talk", title: "Talk", hint: "Your own conversation with the agent.", tall: true, body: talk.root },
    { name: "conversations", title: "Conversations", tools: places.tools, tall: true, body: places.body },
    { name: "live", title: "Live stream", tools: live.tools, tall: true, body: live.body },
    { name: "search", title: "Search", tools: search.tools, tall: true, body: search.body },
  ],
  Agent: [
    { name: "agent", title: "Agent and memory", hint: "What it does on its own, and what it keeps.", body: [agents.root, ownPanels] },
    { name: "turns", title: "Turns", hint: "Each time that a model was used.", tall: true, body: turnLog.body },
    { name: "costs", title: "Costs", tools: costs.tools, body: costs.body },
  ],
  Gateway: [
    { name: "channels", title: "Channels", body: channels.body },
    { name: "audit", title: "Audit", hint: "Who did what with the gateway.", tall: true, body: auditLog.body },
    { name: "warnings", title: "Warnings", hint: "Since this page was opened.", tall: true, body: warningLog.body },
    { name: "config", title: "Configuration", tools: reload, tall: true, body: config.root },
    { name: "plugins", title: "Plugins", body: otherPanels },
  ],
});

const refresh = {
  status: new Refresh(status, failed),
  waiting: new Refresh(loadWaiting, failed),
  channels: new Refresh(() => channels.refresh(), failed),
  outbox: new Refresh(() => channels.loadOutbox(), failed),
  places: new Refresh(() => places.refresh(), failed, "conversations"),
  opened: new Refresh(() => places.talk.load(), failed, "conversations"),
  talk: new Refresh(() => talk.load(), failed, "talk"),
  live: new Refresh(() => live.refresh(), failed, "live"),
  turns: new Refresh(() => turnLog.refresh(), failed, "turns"),
  costs: new Refresh(() => costs.refresh(), failed, "costs"),
  audit: new Refresh(() => auditLog.refresh(), failed, "audit"),
  plugins: new Refresh(() => showPlugins(ownPanels, otherPanels), failed, "agent", "plugins"),
  agents: new Refresh(() => agents.load(), failed, "agent", "conversations"),
  config: new Refresh(() => config.refresh(), failed, "config"),
};
const all = Object.values(refresh);
const soon = (...names) => names.forEach((name) => refresh[name].soon());
const loadAll = () => all.forEach((one) => one.soon());

async function status() {
  const told = await get("/api/status");
  setClock(told.now);
  show($("version"), `Reverie ${told.version}`);
  $("version").title = `running for ${since(told.started)}, since ${new Date(told.started).toLocaleString()}`;
  show($("model"), said(told.model));
  agents.status(told);
  channels.status(told);
  put(figures, today(told));
}

async function loadWaiting() {
  const { items } = await get("/api/waiting");
  views.count(items.length);
  put(cards, waiting(items, () => soon("waiting")));
}

/** Load what a view shows, as it is opened. */
function shown(view, part, changed) {
  if (view === "conversations") places.follow(part, !changed).catch(failed);
  if (!changed) return;
  forgetResult();
  if (view === "talk") talk.open(OPERATOR).catch(failed);
  if (token()) for (const one of all) if (one.views.includes(view)) one.now();
}

/** Load again what a change in a conversation concerns. */
function changed(conversation) {
  soon("places");
  if (conversation === places.chosen) soon("opened");
  if (conversation === OPERATOR) soon("talk");
}

function heard(type, event) {
  learn(event);
  if (type === "notification") {
    live.take(event);
    changed(event.conversation);
    soon("waiting");
    if (event.kind === "command") soon("audit", "live");
  } else if (["dmn", "text", "tool", "turn"].includes(type)) {
    agents.take(type, event);
    for (const one of [talk, places.talk]) if (one.id === event.conversation) one.live();
    if (type === "tool") soon("waiting");
    if (type !== "turn") return;
    changed(event.conversation);
    soon("status", "waiting");
    if (event.state === "ended") soon("turns", "costs", "live", "plugins");
  } else if (type === "post" || type === "delivery") {
    changed(event.conversation);
    soon("outbox");
  } else if (type === "channel") {
    channels.take(event);
    soon("status");
  } else if (type === "log") warn(event.level, event.message, event.logger, event.at);
  else if (type === "reloaded") {
    for (const one of event.problems) warn("error", one, "reload");
    for (const one of event.later) warn("warning", `${one} takes effect at the next start`, "reload");
    soon("status", "channels", "config");
  } else if (type === "lost") {
    warn("warning", `${plural(event.count, "event was", "events were")} dropped because there were too many; the page reads the log again`);
    loadAll();
  }
}

/** Number of warnings. */
let count = 0;

/** Show a warning; without more, one of the page itself. */
function warn(level, message, logger = "this page", at = new Date().toISOString()) {
  count += 1;
  warningLog.take({ at, level, logger, message, seq: count });
}

/** Words for the states of the connection, and their colours. */
const STATES = {
  connecting: ["connecting", "open"],
  live: ["live", "done"],
  waiting: ["reconnecting", "open"],
  resting: ["resting", "open"],
  refused: ["no access", "bad"],
};
let wasLive = false;
const events = new Events({
  heard,
  refused: failed,
  state(name) {
    const [words, tone] = STATES[name];
    const lost = wasLive && name === "connecting"; // it is told already
    if (!lost) put($("connection"), chip(words, tone, "The connection for live events"));
    if (name === "live" && wasLive) loadAll(); // what happened meanwhile
    wasLive ||= name === "live";
  },
});

function failed(error) {
  if (error.status === 401) {
    if (error.asker !== token()) return; // the answer to an older token
    forgetToken();
    logIn("The gateway refuses this token.");
  } else if (error.status) warn("error", `the gateway answered ${error.status}: ${error.message}`);
  else if (!(error instanceof ApiError) && error.name !== "TimeoutError") console.error(error);
}

const showFrame = (there) => ["frame", "menu"].forEach((id) => ($(id).hidden = !there));

/** Show the form to log in, instead of the views. */
function logIn(why) {
  events.stop();
  showFrame(false);
  $("entry").hidden = false;
  $("entry-why").textContent = why;
  show($("connection"));
  $("token").value = "";
  $("token").focus();
}

$("entry").onsubmit = (event) => {
  event.preventDefault();
  const words = $("token").value.trim();
  if (/[^\x21-\x7e]/.test(words)) $("entry-why").textContent = "A token consists of letters, digits and signs, without spaces.";
  else {
    setToken(words);
    begin();
  }
};

async function begin() {
  if (!token()) return logIn("");
  $("entry").hidden = true;
  $("main").ariaBusy = "true";
  try {
    await loadRole();
    await live.refresh();
  } catch (error) {
    if (error.status === 403) return logIn(error.message);
    failed(error);
    if (error.status) return;
  }
  showFrame(true);
  views.offer("config", may("own"));
  put(reload, act({ label: "Read the files again", words: ["reload"] }));
  events.start(live.newest);
  Refresh.view = "";
  views.follow(false);
  await Promise.all(all.map((one) => one.now()));
  performance.mark("reverie-shown");
  $("main").ariaBusy = "false";
}

let resting = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(resting);
  if (document.hidden) resting = setTimeout(() => events.running && events.stop("resting"), HIDDEN_MS);
  else if (token() && !events.running && $("entry").hidden) {
    events.start();
    loadAll();
  }
});

setInterval(() => {
  if (document.hidden || !events.running) return;
  agents.paint();
  for (const one of all) one.tick();
}, 1000);

window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    takeToken();
    begin();
  } else if (location.hash === "#main") {
    history.replaceState(null, "", address(Refresh.view, (Refresh.view === "conversations" && places.chosen) || ""));
    $("main").focus();
  } else views.follow(true);
});

const go = (view) => view && !$("frame").hidden && (location.hash = address(view));
const help = () => $("help").showModal();

/** Show the theme; `by`: 1: take the next one. */
function theme(by = 1) {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + by) % names.length];
  document.documentElement.dataset.theme = next;
  if (by) localStorage.setItem("reverie.theme", next);
  show($("theme"), h("span", { "aria-hidden": "true" }, THEMES[next]), h("span.word", ` ${next}`));
  $("theme").ariaLabel = `Theme: ${next}`;
}

const KEYS = {
  "?": help,
  ":": () => document.querySelector(`#${Refresh.view} .reply textarea`)?.focus(),
  t: () => theme(),
  p: () => live.hold(!live.paused),
  "/": () => document.querySelector(`#${Refresh.view} input[type=search]`)?.focus(),
};
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const act = KEYS[event.key] ?? (/^[1-9]$/.test(event.key) && (() => go(views.names[event.key - 1])));
  if (!act) return;
  event.preventDefault();
  act();
});
$("help-button").onclick = help;
$("theme").onclick = () => theme();

theme(0);
takeToken();
begin();
