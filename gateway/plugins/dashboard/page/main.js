/** The page: sign-in, views, and when each part is loaded again. */

import { act, forgetResult } from "./acts.js";
import { Agents } from "./agents.js";
import { ApiError, get, loadRole, may, Refresh, setToken, takeToken, token } from "./api.js";
import { Channels } from "./channels.js";
import { Config } from "./config.js";
import { Costs } from "./costs.js";
import { chip, put, said, show } from "./dom.js";
import { Events } from "./events.js";
import { plural, setClock, since } from "./format.js";
import { audit, Live, Search, turns, warnings } from "./lists.js";
import { Places } from "./places.js";
import { Plugins } from "./plugins.js";
import { Talk } from "./talk.js";
import { address, Views } from "./views.js";
import { Waiting } from "./waiting.js";

const THEMES = { system: "◐", light: "○", dark: "●" };
/** Time after which a tab in the background rests: a browser opens six connections per host. */
const HIDDEN_MS = 60_000;
const $ = (id) => document.getElementById(id);

const agents = new Agents();
const talk = new Talk(agents);
const places = new Places(new Talk(agents, ""));
const waiting = new Waiting(agents.running, (number) => views.count(number));
const [live, search] = [new Live(), new Search()];
const channels = new Channels($("ready"), $("alerts"));
const config = new Config();

const groups = {
  "": [waiting, talk, places, live, search],
  Agent: [agents, turns, new Costs()],
  Gateway: [channels, audit, warnings, config, new Plugins(agents.panels)],
};
const views = new Views({ nav: $("nav"), menu: $("menu"), main: $("main") }, shown, groups);

/** Loads by name: of each view, `also` for others that show it, or `always`; and of the status. */
const refresh = { status: new Refresh(status, failed, []) };
for (const one of Object.values(groups).flat())
  refresh[one.name] = new Refresh(() => one.load(), failed, one.always ? [] : [one.name, ...(one.also ?? [])]);
const all = Object.values(refresh);
const soon = (...names) => names.forEach((name) => refresh[name].soon());
const loadAll = () => all.forEach((one) => one.soon());

async function status() {
  const told = await get("/api/status");
  setClock(told.now);
  show($("version"), `Reverie ${told.version}`);
  $("version").title = `running for ${since(told.started)}, since ${new Date(told.started).toLocaleString()}`;
  show($("model"), said(told.model));
  for (const one of [agents, channels, waiting]) one.status(told);
}

/** Load what a view shows, as it is opened. */
function shown(view, part, changed) {
  if (view === "conversations") places.follow(part, !changed).catch(failed);
  if (!changed) return;
  forgetResult();
  if (token()) for (const one of all) if (one.views.includes(view)) one.now();
}

/** What is loaded again after an event of a type. */
const STALE = {
  notification: ["waiting", "conversations", "talk", "audit"],
  turn: ["status", "waiting", "conversations", "talk", "turns", "costs", "live", "plugins"],
  tool: ["waiting"],
  post: ["conversations", "talk", "live", "channels"],
  delivery: ["conversations", "talk", "channels"],
  channel: ["status"],
  dmn: ["agent"],
  reloaded: ["status", "channels", "config"],
  lost: Object.keys(refresh),
};

function heard(type, event) {
  if (type === "notification") live.take(event);
  if (type === "channel") channels.take(event);
  if (type === "log") warn(event.level, event.message, event.logger, event.at);
  if (type === "lost") warn("warning", `${plural(event.count, "event was", "events were")} dropped because there were too many`);
  for (const one of event.problems ?? []) warn("error", one, "reload");
  for (const one of event.later ?? []) warn("warning", `${one} takes effect at the next start`, "reload");
  if (agents.take(type, event)) for (const one of [talk, places.talk]) one.live();
  soon(...(STALE[type] ?? []));
}

/** Show a warning; without more, one of the page itself. */
const warn = (level, message, logger = "this page", at = new Date().toISOString()) =>
  warnings.take({ at, level, logger, message, seq: warnings.newest + 1 });

let wasLive = false;
const events = new Events(heard, (state, error) => {
  const tone = { live: "done", refused: "bad" }[state] ?? "open";
  const isTold = wasLive && state === "connecting"; // as reconnecting
  $("ready").hidden = state !== "live";
  if (!isTold) put($("connection"), chip(state, tone, "The connection for live events"));
  if (state === "live") wasLive ? loadAll() : soon("live"); // what happened meanwhile
  wasLive ||= state === "live";
  if (error) failed(error);
});

function failed(error) {
  if (error.status === 401) {
    if (error.asker !== token()) return; // the answer to an older token
    setToken("");
    logIn("The gateway refuses this token.");
  } else if (error.status) warn("error", `the gateway answered ${error.status}: ${error.message}`);
  else if (!(error instanceof ApiError) && error.name !== "TimeoutError") console.error(error);
}

/** Show the form to log in, instead of the views. */
function logIn(why) {
  events.stop();
  $("frame").hidden = $("menu").hidden = true;
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
    await live.load();
  } catch (error) {
    if (error.status === 403) return logIn(error.message);
    failed(error);
    if (error.status) return;
  }
  $("frame").hidden = $("menu").hidden = false;
  views.offer("config", may("own"));
  put(config.tools, act({ label: "Read the files again", words: ["reload"] }));
  events.start();
  Refresh.view = "";
  views.follow(false);
  await Promise.all(all.map((one) => one.now()));
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
  $("theme").textContent = `${THEMES[next]} ${next}`;
}

const KEYS = {
  "?": help,
  ":": () => {
    const field = document.querySelector(`#${Refresh.view} .reply textarea`);
    if (field) field.focus();
    else go("talk");
  },
  t: () => theme(),
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
const dismiss = (event) => {
  if (event.key !== "Escape" || !$("told").firstChild || document.querySelector("dialog[open]")) return;
  event.stopPropagation(); // it closes the result only
  forgetResult();
};
document.addEventListener("keydown", dismiss, true);
$("skip").onclick = () => $("main").focus();
$("help-button").onclick = help;
$("theme").onclick = () => theme();

theme(0);
takeToken();
begin();
